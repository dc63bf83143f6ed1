"""LoRA adapters: names under which a server answers beside its model's own, given at the start or loaded later."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .refusals import Refused, missing

Body = dict[str, object]


@dataclass(frozen=True)
class Adapter:
    name: str
    path: str
    base_model_name: str | None = None


def parse_adapter(text: str) -> Adapter:
    """Of `--lora-modules`: NAME=PATH, or an object in JSON. Raises ValueError."""
    if not text.startswith("{"):
        name, equals, path = text.partition("=")
        if not equals:
            raise ValueError(f"{text}: expected NAME=PATH")
        return Adapter(name, path)
    given = json.loads(text)
    return Adapter(given["name"], given["path"], given.get("base_model_name"))


class Adapters:
    """Those that are loaded. `may_change`: the routes that load and unload exist (VLLM_ALLOW_RUNTIME_LORA_UPDATING)."""

    def __init__(self, names: tuple[str, ...], loaded: tuple[Adapter, ...], *, may_change: bool) -> None:
        self.may_change = may_change
        self._names = names
        self._loaded = {adapter.name: adapter for adapter in loaded}

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def parents(self) -> list[tuple[Adapter, str]]:
        """Each with the name of the model that it belongs to."""
        return [(one, self._parent(one)) for one in self._loaded.values()]

    def _parent(self, adapter: Adapter) -> str:
        return adapter.base_model_name if adapter.base_model_name in self._names else self._names[0]

    def load(self, body: Body) -> str:
        """What the server says. Raises Refused."""
        name, path = (_given(body, field) for field in ("lora_name", "lora_path"))
        if not name or not path:
            raise _wrong("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._names:
            raise _wrong(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self._loaded and not body.get("load_inplace"):
            raise _wrong(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        self._loaded[name] = Adapter(name, path)
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: Body) -> str:
        """What the server says. Raises Refused."""
        name = _given(body, "lora_name")
        if not name:
            raise _wrong("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._loaded:
            raise Refused(f"The lora adapter '{name}' cannot be found.", "NotFoundError", code=404)
        del self._loaded[name]
        return f"Success: LoRA adapter '{name}' removed successfully."


def _given(body: Body, field: str) -> str:
    if body.get(field) is None:
        raise missing(field, body)
    return str(body[field])


def _wrong(message: str) -> Refused:
    return Refused(message, "InvalidUserInput")
