"""What people type about deployments, servers and hosts. The domain decides; here is only the reading of text."""

import shlex
import uuid
from typing import Any, cast

from django import forms
from django.forms.widgets import Input

from console.fleet.deployments import DeploymentData
from console.fleet.errors import FleetError
from console.fleet.models import Deployment, Engine, Host, KvLoadFailurePolicy, WhenNoPair, limits, name_validator
from console.fleet.states import ServerRole

CONTROL, SELECT = "form-control", "form-select"


class PageForm(forms.Form):
    """Widgets in the looks of the pages, a hidden `once`, and refusals of the domain at their field."""

    once = forms.CharField(widget=forms.HiddenInput, required=False, initial=lambda: uuid.uuid4().hex)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            _dress(field.widget)

    def refuse(self, error: FleetError) -> None:
        self.add_error(error.field if error.field in self.fields else None, error.message)


def _dress(widget: forms.Widget) -> None:
    if isinstance(widget, forms.HiddenInput | forms.CheckboxInput | forms.RadioSelect | forms.CheckboxSelectMultiple):
        return
    if isinstance(widget, forms.Select):
        widget.attrs.setdefault("class", SELECT)
    elif isinstance(widget, Input | forms.Textarea):
        widget.attrs.setdefault("class", CONTROL)


def _short(value: Any) -> Any:
    """2000 for 2000.0, as one would type it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


UNSPLIT = {
    "No closing quotation": "A quotation mark is not closed.",
    "No escaped character": "Nothing follows the backslash at the end.",
}
"""What `shlex` says, in words for the page."""


class ArgumentsField(forms.CharField):
    """A command line's arguments, quoted as in a shell; cleaned to a list. No shell ever sees them."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, list):
            return value
        try:
            return shlex.split(str(value or ""))
        except ValueError as error:
            raise forms.ValidationError(UNSPLIT.get(str(error), f"This is no command line: {error}.")) from error

    def prepare_value(self, value: Any) -> Any:
        return shlex.join(value) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != (initial or []))
        except forms.ValidationError:
            return True


class EnvironmentField(forms.CharField):
    """NAME=value, one a line; cleaned to a mapping."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        lines = [line.strip() for line in str(value or "").splitlines() if line.strip()]
        for line in lines:
            if "=" not in line:
                raise forms.ValidationError(f"Write NAME=value, one a line; {line!r} has no =.")
        return {name.strip(): text.strip() for name, text in (line.split("=", 1) for line in lines)}

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != (initial or {}))
        except forms.ValidationError:
            return True


FAILURE_CHOICES = [
    (
        KvLoadFailurePolicy.RECOMPUTE,
        "Recompute",
        "The decode server computes the prompt itself. The request ends well but late, and streams beside it stall "
        "while the prompt is computed.",
    ),
    (
        KvLoadFailurePolicy.FAIL,
        "Fail",
        "The request ends with an error, and nobody else is slowed down. Clients have to try again themselves.",
    ),
]
NO_PAIR_CHOICES = [
    (
        WhenNoPair.FALLBACK,
        "Serve without splitting",
        "A decode or plain server does it all. Requests succeed; long prompts then stall running streams. Shown as "
        "“fallback”.",
    ),
    (WhenNoPair.REFUSE, "Refuse with 503", "Streams keep their pace; clients get an error until a pair is back."),
]


def _limit(
    span: limits.Span, label: str, help_text: str, field: type[forms.IntegerField] = forms.FloatField
) -> forms.IntegerField:
    """Empty: the router's default. `span` is told in one sentence, whichever end was passed."""
    widget = forms.NumberInput(attrs={"min": f"{span.least:g}", "max": f"{span.most:g}"})
    return field(required=False, label=label, help_text=help_text, validators=span.validators(), widget=widget)


class DeploymentForm(PageForm):
    """Adds a deployment, or changes one. `admin`: extra arguments and environment may be set."""

    name = forms.CharField(
        max_length=63, validators=[name_validator], help_text="In addresses and in the names of its servers."
    )
    engine = forms.ChoiceField(choices=Engine.choices, initial=Engine.VLLM)
    model = forms.CharField(
        max_length=500, help_text="Path or repository name. Every server gets this very string: pairs rely on it."
    )
    served_model_name = forms.CharField(
        max_length=200, required=False, label="Served name", help_text="What clients send as model. Empty: the name."
    )
    engine_args = ArgumentsField(
        required=False,
        label="Extra arguments",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="For every server, whatever its role, as on a command line. Only admins set them.",
    )
    engine_env = EnvironmentField(
        required=False,
        label="Extra environment",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="NAME=value, one a line, nothing secret. Only admins set it.",
    )
    connector = forms.CharField(
        max_length=60,
        required=False,
        initial="NixlConnector",
        label="KV connector",
        help_text="Carries the KV cache from prefill to decode. Empty: plain servers only.",
    )
    kv_load_failure_policy = forms.ChoiceField(
        label="When the KV cache cannot be fetched",
        choices=[(value, label) for value, label, _ in FAILURE_CHOICES],
        initial=KvLoadFailurePolicy.RECOMPUTE,
        widget=forms.RadioSelect,
    )
    when_no_pair = forms.ChoiceField(
        label="When no pair can serve",
        choices=[(value, label) for value, label, _ in NO_PAIR_CHOICES],
        initial=WhenNoPair.FALLBACK,
        widget=forms.RadioSelect,
    )
    short_prompt_tokens = forms.IntegerField(
        min_value=0,
        initial=0,
        label="Short prompts, tokens",
        help_text="Prompts below this skip the prefill server. 0 splits every request.",
    )
    busy_decode_streams = forms.IntegerField(
        min_value=0,
        required=False,
        label="Busy decode server, streams",
        help_text="Above this many streams on the decode server a short prompt is split all the same. Empty: never.",
    )
    plain_share_percent = forms.FloatField(
        min_value=0,
        max_value=100,
        initial=0,
        label="Share to plain servers, %",
        help_text="While split servers are there too.",
    )
    retries = forms.IntegerField(
        min_value=0, max_value=5, initial=2, help_text="Attempts after the first, before any byte went to the client."
    )
    wait_for_server_s = forms.FloatField(
        min_value=0,
        max_value=600,
        initial=0,
        label="Wait for a starting server, s",
        help_text="How long a request may wait when none is ready yet.",
    )
    max_connections_per_server = _limit(
        limits.CONNECTIONS,
        "Connections per server",
        "So many requests are under way at one server at most. Empty: 2048.",
        forms.IntegerField,
    )
    connect_s = _limit(limits.CONNECT_S, "Connect, s", "To reach a server, before another is tried. Empty: 3 s.")
    first_byte_s = _limit(
        limits.FIRST_BYTE_S,
        "First byte, s",
        "For a server's answer to begin. One that is not streamed begins when it is complete. Empty: no limit.",
    )
    idle_s = _limit(limits.IDLE_S, "Silence, s", "For a pause within an answer. Empty: 300 s.")
    total_s = _limit(
        limits.TOTAL_S, "Whole request, s", "Until its answer is complete, with all its attempts. Empty: no limit."
    )
    comment_every_s = _limit(
        limits.COMMENT_EVERY_S,
        "Comment line every, s",
        "Sent to a stream that waits for its first token, so that no proxy cuts it. A failure after one comes inside "
        "the stream. Empty: none.",
    )
    prefix_affinity = forms.BooleanField(
        required=False, initial=True, label="Same prefix, same prefill server", help_text="Reuses its prefix cache."
    )
    session_affinity = forms.BooleanField(
        required=False, initial=True, label="Same session, same servers", help_text="While they have room."
    )
    require_key = forms.BooleanField(
        required=False,
        initial=True,
        label="Clients need an inference key",
        help_text="Off: whoever reaches the router can use this model.",
    )
    ttft_limit_ms = forms.FloatField(
        min_value=1, required=False, label="TTFT limit, ms", help_text="Drawn on the chart. Empty: no limit."
    )
    gap_limit_ms = forms.FloatField(
        min_value=1, required=False, label="Gap limit, ms", help_text="A gap above it counts as a stall. Empty: 200 ms."
    )
    change_reason = forms.CharField(
        max_length=400, required=False, label="Why", help_text="Kept with the change in the audit trail."
    )

    EDITED = tuple(DeploymentData.__annotations__)

    def __init__(self, *args: Any, admin: bool, deployment: Deployment | None = None, **kwargs: Any) -> None:
        if deployment is not None:
            kwargs["initial"] = {field: _short(getattr(deployment, field)) for field in self.EDITED}
        super().__init__(*args, **kwargs)
        for field in ("engine_args", "engine_env"):
            self.fields[field].disabled = not admin
        if deployment is None:
            del self.fields["change_reason"]

    def clean(self) -> dict[str, Any]:
        cleaned = dict(super().clean() or {})
        cleaned["served_model_name"] = cleaned.get("served_model_name") or cleaned.get("name", "")
        return cleaned

    def data_for_create(self) -> DeploymentData:
        return self._only(set(self.EDITED))

    def data_for_update(self) -> DeploymentData:
        return self._only(set(self.changed_data))

    def reason(self) -> str:
        return str(self.cleaned_data.get("change_reason", ""))

    def _only(self, wanted: set[str]) -> DeploymentData:
        kept = {k: v for k, v in self.cleaned_data.items() if k in wanted and k in self.EDITED}
        if "connector" in kept and kept["connector"] is None:
            kept["connector"] = ""
        return cast(DeploymentData, kept)

    @property
    def failure_choices(self) -> list[tuple[KvLoadFailurePolicy, str, str]]:
        return FAILURE_CHOICES

    @property
    def no_pair_choices(self) -> list[tuple[WhenNoPair, str, str]]:
        return NO_PAIR_CHOICES


class CloneForm(PageForm):
    name = forms.CharField(max_length=63, validators=[name_validator], help_text="Of the new deployment.")
    served_model_name = forms.CharField(
        max_length=200, required=False, label="Served name", help_text="What clients send as model. Empty: the name."
    )


class ServerForm(PageForm):
    """Adds a server. The GPUs to choose from are those of the chosen host."""

    host = forms.ModelChoiceField(
        queryset=Host.objects.all(), empty_label=None, to_field_name="name", help_text="Where its process runs."
    )
    role = forms.ChoiceField(choices=ServerRole.choices, widget=forms.RadioSelect, initial=ServerRole.PLAIN)
    gpu_indexes = forms.TypedMultipleChoiceField(
        coerce=int, required=False, label="GPUs", widget=forms.CheckboxSelectMultiple
    )
    name = forms.CharField(
        max_length=63,
        required=False,
        validators=[name_validator],
        help_text="Empty: the deployment's name and a number.",
        # What is typed while the choices around it are fetched anew must not be lost.
        widget=forms.TextInput(attrs={"hx-preserve": "true"}),
    )

    def __init__(self, *args: Any, host: Host | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        gpus = host.gpus.all() if host else []
        field = cast(forms.TypedMultipleChoiceField, self.fields["gpu_indexes"])
        field.choices = [(gpu.index, f"GPU {gpu.index}") for gpu in gpus]
        field.error_messages["invalid_choice"] = f"Host {host} has no GPU %(value)s. Choose from the list."


class AdoptForm(PageForm):
    """Adopts a server that someone else started."""

    url = forms.CharField(
        max_length=300,
        label="Address",
        help_text="As the console reaches it, for example http://10.0.0.5:8000.",
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false", "autocomplete": "off"}),
    )
    role = forms.ChoiceField(
        required=False,
        choices=[("", "As it says"), *ServerRole.choices],
        help_text="vLLM seldom tells its role. With a KV connector say which it is; a try-out of its pairs proves it.",
    )
    api_key = forms.CharField(
        max_length=200,
        required=False,
        label="API key",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Only if it was started with one. Kept for the routers and never shown again.",
    )
    name = forms.CharField(
        max_length=63,
        required=False,
        validators=[name_validator],
        help_text="Empty: the deployment's name and a number.",
    )


class JoinTokenForm(PageForm):
    """A join token, with which a machine joins as a host."""

    name = forms.CharField(
        max_length=80, initial="new host", help_text="What it is for, so that you can tell it from others."
    )
    host_name = forms.CharField(
        max_length=63,
        required=False,
        validators=[name_validator],
        label="Host's name",
        help_text="Given, only a host of this name can join, also in the place of one that has it already.",
    )
    expires_in_days = forms.TypedChoiceField(
        choices=[("1", "a day"), ("7", "a week"), ("30", "30 days"), ("", "no end")],
        coerce=int,
        empty_value=None,
        required=False,
        initial="1",
        label="Works for",
    )
    machines = forms.ChoiceField(
        choices=[("one", "one machine"), ("many", "any number of machines")], initial="one", label="Lets in"
    )

    def cleaned_terms(self) -> dict[str, Any]:
        """As `join_tokens.issue` takes them."""
        chosen = self.cleaned_data
        return {
            "name": chosen["name"],
            "host_name": chosen["host_name"],
            "single_use": chosen["machines"] == "one",
            "expires_in_days": chosen["expires_in_days"],
        }
