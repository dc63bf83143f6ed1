"""Creating, changing, cloning and deleting deployments, and their revisions."""

from typing import Any

import pytest

from console.accounts.models import AuditEntry
from console.fleet import actions
from console.fleet.errors import Conflict, FleetError, Forbidden, Invalid, NotFound
from console.fleet.models import Deployment, Engine, Server
from console.fleet.states import ServerState
from tests.factories import ADMIN, OPERATOR, VIEWER, make_deployment, make_host, make_server
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)


def data(**fields: Any) -> Any:
    return {"name": "chat", "model": "example/tiny", "served_model_name": "tiny", **fields}


def test_a_deployment_is_created_with_a_key_for_its_servers() -> None:
    made = actions.create_deployment(OPERATOR, data())
    assert len(made.server_api_key) > 20
    entry = AuditEntry.objects.get(action="deployment.create")
    assert entry.after["server_api_key"] == "set"
    assert made.server_api_key not in str(entry.after)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Not A Name"),
        ("name", ""),
        ("name", "new"),
        ("model", ""),
        ("model", "--max-model-len=77"),
        ("served_model_name", "-x"),
        ("served_model_name", ""),
        ("engine", "tgi"),
        ("kv_load_failure_policy", "hope"),
        ("plain_share_percent", 101),
        ("retries", 99),
        ("ttft_limit_ms", -1),
        ("engine_args", "--max-model-len 4096"),
        ("engine_args", ["--port", "1"]),
        ("engine_env", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("engine_env", ["A=1"]),
        ("no_such_field", 1),
    ],
)
def test_what_cannot_be_meant_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        actions.create_deployment(ADMIN, data(**{field: value}))
    assert refused.value.field == field
    assert not Deployment.objects.exists()


def test_only_the_simulated_engine_is_held_to_its_few_connectors() -> None:
    made = actions.create_deployment(ADMIN, data(engine=Engine.VLLM, connector="LMCacheConnectorV1"))
    with pytest.raises(Invalid, match="Choose NixlConnector") as refused:
        actions.update_deployment(made.pk, ADMIN, {"engine": Engine.SIMULATED})
    assert refused.value.field == "connector"
    assert actions.update_deployment(made.pk, ADMIN, {"engine": Engine.SIMULATED, "connector": ""}).connector == ""


@pytest.mark.parametrize("field", ["name", "served_model_name"])
def test_no_two_deployments_share_a_name(field: str) -> None:
    actions.create_deployment(ADMIN, data())
    with pytest.raises(Invalid) as refused:
        actions.create_deployment(ADMIN, data(**{"name": "other", "served_model_name": "other", field: data()[field]}))
    assert refused.value.field == field


def test_a_viewer_creates_nothing() -> None:
    with pytest.raises(Forbidden):
        actions.create_deployment(VIEWER, data())


def test_extra_arguments_are_for_admins_to_set_and_to_take_away() -> None:
    with pytest.raises(Forbidden):
        actions.create_deployment(OPERATOR, data(engine_args=["--enforce-eager"]))
    made = actions.create_deployment(ADMIN, data(engine_args=["--enforce-eager"]))
    with pytest.raises(Forbidden):
        actions.update_deployment(made.pk, OPERATOR, {"engine_args": []})


def test_the_trail_names_secret_variables_without_their_values() -> None:
    made = actions.create_deployment(
        ADMIN, data(engine_env={"HF_TOKEN": "hf_very_secret", "VLLM_LOGGING_LEVEL": "DEBUG"})
    )
    shown = AuditEntry.objects.get(target=f"deployment {made.name}").after["engine_env"]
    assert shown == {"HF_TOKEN": "set", "VLLM_LOGGING_LEVEL": "DEBUG"}


def test_a_policy_changes_while_servers_run_and_makes_no_revision() -> None:
    server = make_server(state=ServerState.READY)
    changed = actions.update_deployment(server.deployment_id, OPERATOR, {"short_prompt_tokens": 500})
    assert (changed.short_prompt_tokens, changed.revision) == (500, 1)


def test_a_limit_that_cannot_be_meant_is_refused_in_words() -> None:
    with pytest.raises(
        Invalid, match=r"^Give a number from 1 to 3600, or leave it empty for the router's default\.$"
    ) as refused:
        actions.create_deployment(ADMIN, data(comment_every_s=0))
    assert refused.value.field == "comment_every_s"


def test_what_running_servers_rely_on_does_not_change_under_them() -> None:
    server = make_server(state=ServerState.READY)
    with pytest.raises(Conflict, match=f"while {server.name} run"):
        actions.update_deployment(server.deployment_id, OPERATOR, {"model": "example/other"})


def test_a_change_that_changes_nothing_leaves_no_trace() -> None:
    made = actions.create_deployment(ADMIN, data())
    actions.update_deployment(made.pk, OPERATOR, {"model": "example/tiny"})
    assert not AuditEntry.objects.filter(action="deployment.update").exists()


def test_each_change_of_what_servers_start_with_is_a_revision() -> None:
    made = actions.create_deployment(ADMIN, data())
    actions.update_deployment(made.pk, ADMIN, {"engine_args": ["--enforce-eager"]}, "less memory")
    kept = made.revisions.get(number=2)
    assert (kept.made_by, kept.reason, kept.settings["engine_args"]) == ("ada", "less memory", ["--enforce-eager"])


def test_rolling_back_is_a_new_revision_with_the_old_settings() -> None:
    made = actions.create_deployment(ADMIN, data())
    actions.update_deployment(made.pk, ADMIN, {"engine_args": ["--enforce-eager"]})
    back = actions.roll_back(made.pk, 1, ADMIN)
    assert (back.revision, back.engine_args) == (3, [])
    assert made.revisions.get(number=3).reason == "back to revision 1"


def test_there_is_no_way_back_to_a_revision_that_never_was() -> None:
    with pytest.raises(NotFound):
        actions.roll_back(make_deployment().pk, 7, ADMIN)


def test_a_server_knows_the_revision_that_it_was_started_with(sent: Sent) -> None:
    made = actions.create_deployment(ADMIN, data())
    server = make_server(deployment=made)
    actions.start(server.pk, OPERATOR)
    actions.update_deployment(made.pk, ADMIN, {"engine_args": ["--enforce-eager"]})
    server.refresh_from_db()
    made.refresh_from_db()
    assert (server.revision, made.revision) == (1, 2)


def test_a_clone_is_like_its_source_but_for_names_and_key() -> None:
    made = actions.create_deployment(ADMIN, data(engine_args=["--enforce-eager"], short_prompt_tokens=300, idle_s=45.0))
    clone = actions.clone_deployment(made.pk, OPERATOR, "chat-two", "tiny-two")
    assert (clone.engine_args, clone.short_prompt_tokens, clone.idle_s) == (["--enforce-eager"], 300, 45)
    assert clone.server_api_key != made.server_api_key
    assert (clone.name, clone.servers.count(), clone.revision) == ("chat-two", 0, 1)


def test_a_deployment_is_deleted_with_its_stopped_servers() -> None:
    server = make_server()
    actions.delete_deployment(server.deployment_id, ADMIN)
    assert not Deployment.objects.exists()
    assert not Server.objects.exists()


def test_a_deployment_with_running_servers_stays() -> None:
    server = make_server(state=ServerState.LOADING)
    with pytest.raises(Conflict, match="still run"):
        actions.delete_deployment(server.deployment_id, ADMIN)
    with pytest.raises(Forbidden):
        actions.delete_deployment(server.deployment_id, OPERATOR)
    assert Deployment.objects.exists()


def add(**fields: Any) -> Server:
    host, deployment = make_host(gpus=2), make_deployment()
    return actions.add_server(
        OPERATOR,
        **{"deployment_id": deployment.pk, "host_id": host.pk, "role": "prefill", "gpu_indexes": [0], **fields},
    )


def test_a_server_gets_the_next_free_name_of_its_deployment() -> None:
    host, deployment = make_host(gpus=2), make_deployment("chat")
    common: Any = {"deployment_id": deployment.pk, "host_id": host.pk, "role": "decode"}
    first = actions.add_server(OPERATOR, gpu_indexes=[0], **common)
    second = actions.add_server(OPERATOR, gpu_indexes=[1], **common)
    assert (first.name, second.name, second.state) == ("chat-1", "chat-2", ServerState.STOPPED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "both"),
        ("gpu_indexes", [5]),
        ("gpu_indexes", [0, 0]),
        ("gpu_indexes", []),
        ("gpu_indexes", ["0"]),
        ("name", "No Name"),
    ],
)
def test_a_server_that_cannot_be_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        add(**{field: value})
    assert refused.value.field == field


def test_a_taken_name_is_refused() -> None:
    taken = make_server().name
    with pytest.raises(Invalid) as refused:
        add(name=taken)
    assert refused.value.field == "name"


@pytest.mark.parametrize("field", ["deployment_id", "host_id"])
def test_a_server_needs_a_deployment_and_a_host_that_exist(field: str) -> None:
    with pytest.raises(NotFound):
        add(**{field: 4711})


def test_a_running_server_is_not_deleted() -> None:
    server = make_server(state=ServerState.READY)
    with pytest.raises(Conflict, match="still runs"):
        actions.delete_server(server.pk, OPERATOR)
    stopped = make_server()
    actions.delete_server(stopped.pk, OPERATOR)
    assert not Server.objects.filter(pk=stopped.pk).exists()


def test_refusals_leave_nothing_half_done() -> None:
    before = AuditEntry.objects.count()
    for attempt in (lambda: add(role="both"), lambda: actions.create_deployment(ADMIN, data(engine="tgi"))):
        with pytest.raises(FleetError):
            attempt()
    assert AuditEntry.objects.count() == before
