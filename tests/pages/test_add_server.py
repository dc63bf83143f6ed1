"""Adding a server: the exact command comes first, and nothing is half done."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.fleet.models import Deployment, Engine, Gpu, Host, Server
from console.fleet.states import ServerRole, ServerState
from tests.factories import make_host
from tests.pages.conftest import Fleet

PAGE = "/deployments/chat/servers/new/"
REGION = {"HX-Request": "true"}


def chosen(**fields: Any) -> dict[str, Any]:
    return {"host": "gpu01", "role": "decode", "gpu_indexes": ["3"], "name": "chat-9", **fields}


def test_the_page_opens_with_a_free_gpu_and_its_whole_command(fleet: Fleet, operator: Client) -> None:
    page = operator.get(PAGE).text
    assert "python -m console.simulator serve" in page
    assert "CUDA_VISIBLE_DEVICES=3" in page
    assert Server.objects.count() == 3


def test_the_command_follows_what_is_chosen(fleet: Fleet, operator: Client) -> None:
    plain = operator.get(PAGE, chosen(role="plain"), headers=REGION).text
    decode = operator.get(PAGE, chosen(), headers=REGION).text
    assert "kv_consumer" not in plain
    assert "kv_consumer" in decode
    assert "<main" not in decode


def test_secrets_are_masked_in_the_command(fleet: Fleet, operator: Client) -> None:
    fleet.deployment.server_api_key = "hunter2hunter2"
    fleet.deployment.save(update_fields=["server_api_key"])
    page = operator.get(PAGE, chosen()).text
    assert "VLLM_API_KEY" in page
    assert "hunter2hunter2" not in page


def test_each_gpu_says_who_has_it(fleet: Fleet, operator: Client) -> None:
    Gpu.objects.filter(host=fleet.host, index=3).update(holders=[{"pid": 4242, "name": "train.py", "memory_mib": 2048}])
    page = operator.get(PAGE).text
    assert "chat-1, ready" in page
    assert "held by train.py (4242), 2.0 GiB" in page


def test_a_server_is_added_and_started(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(PAGE, chosen(start="1"))
    assert answer.headers["Location"] == "/deployments/chat/"
    server = Server.objects.get(name="chat-9")
    assert (server.role, server.gpu_indexes, server.state) == (ServerRole.DECODE, [3], ServerState.PENDING)


def test_a_server_can_be_added_to_be_started_later(fleet: Fleet, operator: Client) -> None:
    operator.post(PAGE, chosen(add="1"))
    assert Server.objects.get(name="chat-9").state == ServerState.STOPPED


def test_a_server_added_for_later_says_at_once_that_its_gpu_is_held(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(PAGE, chosen(gpu_indexes=["0"], add="1"), follow=True)
    assert "nothing runs yet. GPU 0 of gpu01 is held by chat-1, which is ready." in answer.text
    page = operator.get(f"/servers/{Server.objects.get(name='chat-9').pk}/").text
    assert "It cannot start now. GPU 0 of gpu01 is held by chat-1" in page
    assert "It cannot start now." not in operator.get(f"/servers/{fleet.stopped.pk}/").text


def test_a_server_that_cannot_start_is_not_left_behind(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(PAGE, chosen(gpu_indexes=["0"], start="1"))
    assert answer.status_code == 400
    assert "chat-1" in answer.text
    assert not Server.objects.filter(name="chat-9").exists()


def test_the_same_form_sent_twice_adds_one_server(fleet: Fleet, operator: Client) -> None:
    once = uuid.uuid4().hex
    for _ in range(2):
        answer = operator.post(PAGE, chosen(name="", once=once))
        assert answer.headers["Location"] == "/deployments/chat/"
    assert Server.objects.count() == 4


def test_a_refused_form_may_be_sent_again(fleet: Fleet, operator: Client) -> None:
    once = uuid.uuid4().hex
    assert operator.post(PAGE, chosen(name="chat-1", once=once)).status_code == 400
    assert operator.post(PAGE, chosen(once=once)).status_code == 302


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "Not A Name"}, "Use lower-case letters, digits and hyphens"),
        ({"name": "chat-1"}, "There is a server chat-1 already"),
        ({"gpu_indexes": []}, "Choose at least one GPU of host gpu01"),
        ({"gpu_indexes": ["17"]}, "Host gpu01 has no GPU 17"),
        ({"gpu_indexes": ["x"]}, "Host gpu01 has no GPU x"),
        ({"role": "both"}, "both is not one of the available choices"),
        ({"host": "gone"}, "That choice is not one of the available choices"),
    ],
)
def test_wrong_input_is_answered_at_its_field(
    wrong: dict[str, object], message: str, fleet: Fleet, operator: Client
) -> None:
    answer = operator.post(PAGE, chosen(**wrong))
    assert answer.status_code == 400
    assert message in answer.text
    assert Server.objects.count() == 3


def test_a_preview_of_nonsense_says_what_is_wrong(fleet: Fleet, operator: Client) -> None:
    answer = operator.get(PAGE, chosen(role="both"), headers=REGION)
    assert answer.status_code == 200
    assert "is not a role" in answer.text


def test_a_silent_host_is_said_to_be_silent(fleet: Fleet, operator: Client) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1))
    assert "It does not report, so nothing can start there now." in operator.get(PAGE).text


def test_a_host_in_maintenance_is_not_the_first_choice(fleet: Fleet, operator: Client) -> None:
    make_host("aaa", maintenance=True)
    assert "GPUs of gpu01" in operator.get(PAGE).text


def make_unknown_host(name: str) -> Host:
    """Registered, and never heard of since."""
    return make_host(name, gpus=0, last_seen_at=None, address="", inventory={})


def test_the_page_opens_with_a_host_that_reports_and_has_a_free_gpu(fleet: Fleet, operator: Client) -> None:
    make_unknown_host("aaa")
    make_host("bbb", last_seen_at=timezone.now() - timedelta(minutes=5))
    make_host("ccc", gpus=0)
    assert "GPUs of gpu01" in operator.get(PAGE).text


def test_the_page_opens_with_a_host_that_has_the_deployments_engine(fleet: Fleet, operator: Client) -> None:
    make_host("zzz", inventory={"engines": {"vllm": "0.31.0"}})
    Deployment.objects.filter(pk=fleet.deployment.pk).update(engine=Engine.VLLM)
    assert "GPUs of zzz" in operator.get(PAGE).text


def test_a_host_that_never_reported_is_said_so_in_place_of_a_command(fleet: Fleet, operator: Client) -> None:
    make_unknown_host("aaa")
    page = operator.get(PAGE, chosen(host="aaa", gpu_indexes=[])).text
    assert "Host aaa has never reported" in page
    assert "the page Hosts shows the command" in page
    assert "aaa (never reported)" in page
    assert "It has none" not in page
    assert "console.simulator" not in page


def test_no_server_is_added_to_a_host_that_never_reported(fleet: Fleet, operator: Client) -> None:
    make_unknown_host("aaa")
    answer = operator.post(PAGE, chosen(host="aaa", gpu_indexes=[], add="1"))
    assert answer.status_code == 400
    assert "Host aaa has never reported" in answer.text
    assert Server.objects.count() == 3


def test_a_gpu_in_use_is_told_with_the_command(fleet: Fleet, operator: Client) -> None:
    page = operator.get(PAGE, chosen(gpu_indexes=["0"]), headers=REGION).text
    assert "GPU 0 is held by chat-1, which is ready. “Add and start” will be refused" in page
    assert "“Add, start later” works" in page
    assert "CUDA_VISIBLE_DEVICES=0" in page
    assert "will be refused" not in operator.get(PAGE, chosen(gpu_indexes=["2"]), headers=REGION).text


def test_a_gpu_that_a_process_of_others_holds_is_told_with_the_command(fleet: Fleet, operator: Client) -> None:
    holders = [{"pid": 4242, "name": "train.py", "memory_mib": 2048}]
    Gpu.objects.filter(host=fleet.host, index=3).update(holders=holders, simulated=False)
    assert "GPU 3 is held by train.py (4242). A start fails" in operator.get(PAGE, chosen()).text


def fill_the_host(fleet: Fleet) -> None:
    """GPU 0 and 1 have running servers, GPU 2 a stopped one, GPU 3 a process of others."""
    Gpu.objects.filter(host=fleet.host, index=3).update(holders=[{"pid": 4242, "name": "train.py", "memory_mib": 2048}])


def test_where_all_gpus_have_a_server_it_names_one_on_which_nothing_runs(fleet: Fleet, operator: Client) -> None:
    fill_the_host(fleet)
    page = operator.get(PAGE).text
    assert "Nothing runs on GPU 2 now, so a server can start there; chat-3 can start again only once" in page
    assert " checked" not in page.partition('id="gpu-0"')[2].partition("</fieldset>")[0]


def test_where_all_gpus_are_held_it_says_by_whom_and_what_to_do(fleet: Fleet, operator: Client) -> None:
    fill_the_host(fleet)
    Server.objects.filter(pk=fleet.stopped.pk).update(state=ServerState.LOADING)
    page = operator.get(PAGE).text
    assert "all are held, by chat-1, chat-2, chat-3, train.py (4242). Stop one of them and choose its GPU" in page
    assert "or add a host" in page
    assert "None is chosen for you" not in operator.get(PAGE, chosen(), headers=REGION).text


def test_where_all_gpus_are_held_it_names_hosts_with_room(fleet: Fleet, operator: Client) -> None:
    fill_the_host(fleet)
    Server.objects.filter(pk=fleet.stopped.pk).update(state=ServerState.LOADING)
    make_host("zzz")
    make_host("yyy", maintenance=True)
    page = operator.get(PAGE, chosen(gpu_indexes=[]), headers=REGION).text
    assert "or choose another host: zzz." in page


def test_without_a_host_it_says_what_comes_first(fleet: Fleet, operator: Client) -> None:
    Server.objects.all().delete()
    Host.objects.all().delete()
    assert "A server runs on a host. Add one first." in operator.get(PAGE).text


def test_checking_a_host_whose_agent_does_not_answer_says_so(
    fleet: Fleet, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.launch.remote.PREFLIGHT_TIMEOUT_S", 0.1)
    answer = operator.get(PAGE, chosen(check="1"), headers=REGION)
    assert "Host gpu01 did not answer" in answer.text
