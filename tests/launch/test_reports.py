"""Taking in what hosts report."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from console.accounts.models import AuditEntry
from console.fleet.models import Gpu, Host, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import reports
from console.launch.contracts import GpuReport
from console.traffic.models import RequestRecord
from tests.factories import make_host, make_server
from tests.observations import make_end, make_observation, make_report, make_sample
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)
S = ServerState


def state_of(server: Server) -> str:
    return Server.objects.get(pk=server.pk).state


def make_gpu(index: int, **fields: Any) -> GpuReport:
    gpu: GpuReport = {
        "index": index,
        "uuid": f"GPU-{index}",
        "model_name": "Simulated GPU",
        "simulated": True,
        "memory_total_mib": 81920,
        "memory_used_mib": 0,
        "utilization_percent": 0.0,
        "temperature_c": 30.0,
        "power_w": 60.0,
        "holders": [],
    }
    return {**gpu, **fields}  # type: ignore[typeddict-item]


def test_a_host_joins_with_its_first_report() -> None:
    assert reports.take(make_report("gpu07", address="10.0.0.7", gpus=[make_gpu(0), make_gpu(1)]))
    host = Host.objects.get(name="gpu07")
    assert (host.address, host.is_reachable, host.gpus.count()) == ("10.0.0.7", True, 2)
    assert AuditEntry.objects.get(action="host.join").target == "host gpu07"


def test_its_gpus_stay_current() -> None:
    reports.take(make_report("gpu07", gpus=[make_gpu(0), make_gpu(1)]))
    reports.take(make_report("gpu07", gpus=[make_gpu(0, memory_used_mib=7000)]))
    assert list(Gpu.objects.values_list("index", "memory_used_mib")) == [(0, 7000)]


def test_a_name_that_no_host_can_have_is_dropped() -> None:
    assert not reports.take(make_report("../etc"))
    assert not Host.objects.exists()


def test_a_report_that_was_overtaken_is_dropped() -> None:
    reports.take(make_report("gpu07", seq=1005, address="10.0.0.8"))
    assert not reports.take(make_report("gpu07", seq=1004, address="10.0.0.7"))
    assert Host.objects.get().address == "10.0.0.8"


def test_the_first_report_of_a_new_agent_counts_whatever_its_number() -> None:
    reports.take(make_report("gpu07", seq=1005, agent_started_at=100.0))
    assert reports.take(make_report("gpu07", seq=1, agent_started_at=200.0))
    assert not reports.take(make_report("gpu07", seq=1006, agent_started_at=100.0))


def test_an_agent_whose_clock_went_back_is_believed_after_a_silence() -> None:
    reports.take(make_report("gpu07", seq=1, agent_started_at=200.0))
    assert not reports.take(make_report("gpu07", seq=1, agent_started_at=100.0))
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1))
    assert reports.take(make_report("gpu07", seq=1, agent_started_at=100.0))


def test_a_server_follows_its_process(sent: Sent) -> None:
    server = make_server(state=S.PENDING)
    host = server.own_host.name
    for phase, state in [("spawned", S.STARTING), ("weights", S.LOADING), ("listening", S.VERIFYING)]:
        reports.take(make_report(host, make_observation(server.pk, phase=phase)))
        assert state_of(server) == state
    assert sent == [("console.verify", [server.pk, 1], "checks")]


def test_a_process_that_is_gone_is_seen_in_the_first_report_without_it() -> None:
    server = make_server(state=S.READY)
    reports.take(make_report(server.own_host.name, make_end(server.pk, exit_code=-9)))
    fresh = Server.objects.get(pk=server.pk)
    assert (fresh.state, fresh.failure["code"]) == (S.FAILED, "exited")


def test_news_of_an_earlier_start_change_nothing(sent: Sent) -> None:
    server = make_server(state=S.READY, generation=3)
    reports.take(make_report(server.own_host.name, make_end(server.pk, 2), make_observation(server.pk, 3)))
    assert state_of(server) == S.READY
    assert sent == []


def test_a_process_of_an_earlier_start_is_ended(sent: Sent) -> None:
    server = make_server(state=S.LOADING, generation=3)
    host = server.own_host.name
    reports.take(make_report(host, make_observation(server.pk, 2), make_observation(server.pk, 3)))
    assert [(task, args[:2]) for task, args, _ in sent] == [("agent.stop", [server.pk, 2])]


def test_a_process_of_a_server_that_was_deleted_is_ended(sent: Sent) -> None:
    host = make_host()
    reports.take(make_report(host.name, make_observation(987, 1)))
    assert [(task, args[:2], queue) for task, args, queue in sent] == [("agent.stop", [987, 1], host.queue)]


def test_a_start_that_was_given_up_is_ended_when_it_shows_up(sent: Sent) -> None:
    server = make_server(state=S.FAILED)
    reports.take(make_report(server.own_host.name, make_observation(server.pk)))
    assert [(task, args[:2]) for task, args, _ in sent] == [("agent.stop", [server.pk, 1])]


def test_leftovers_hold_the_gpu_until_they_are_gone(sent: Sent) -> None:
    server = make_server(state=S.READY)
    host = server.own_host.name
    reports.take(make_report(host, make_end(server.pk, exit_code=-9, group_pids=[81])))
    fresh = Server.objects.get(pk=server.pk)
    assert (fresh.state, fresh.leftover_pids, fresh.holds_gpu) == (S.FAILED, [81], True)
    reports.take(make_report(host, make_end(server.pk, exit_code=-9)))
    assert not Server.objects.get(pk=server.pk).holds_gpu


def test_leftovers_that_their_host_has_forgotten_are_gone() -> None:
    server = make_server(state=S.FAILED, observed={"generation": 1, "alive": False, "group_pids": [81]})
    reports.take(make_report(server.own_host.name))
    assert not Server.objects.get(pk=server.pk).holds_gpu


def test_a_returned_host_brings_its_servers_back_as_they_were() -> None:
    host = make_host(last_seen_at=timezone.now() - timedelta(minutes=5))
    server = make_server(state=S.UNREACHABLE, state_before_unreachable="ready", host=host)
    reports.take(make_report(host.name, make_observation(server.pk, phase="listening", healthy=True)))
    fresh = Server.objects.get(pk=server.pk)
    assert (fresh.state, fresh.generation) == (S.READY, 1)


def test_the_rate_of_tokens_is_that_between_two_samples() -> None:
    server = make_server(state=S.READY)
    host = server.own_host.name
    reports.take(make_report(host, make_observation(server.pk, sample=make_sample(at=10.0, generation_tokens=100))))
    reports.take(make_report(host, make_observation(server.pk, sample=make_sample(at=12.0, generation_tokens=350))))
    assert Server.objects.get(pk=server.pk).observed["tokens_per_s"] == 125.0


def answer_split_requests(server: Server, count: int, prompt_tokens: int = 400) -> None:
    for _ in range(count):
        number = RequestRecord.objects.count()
        RequestRecord.objects.create(
            request_id=f"r{number}",
            path="/v1/completions",
            streamed=True,
            received_at=timezone.now(),
            route="split",
            decode_server_id=server.pk,
            prompt_tokens=prompt_tokens,
            status=200,
            outcome="ok",
        )


def report_sample(server: Server, **counters: float) -> Server:
    sample = make_sample(**counters)
    reports.take(make_report(server.own_host.name, make_observation(server.pk, phase="listening", sample=sample)))
    return Server.objects.get(pk=server.pk)


def test_a_split_that_is_fictional_is_noticed_on_live_traffic() -> None:
    server = make_server(ServerRole.DECODE, S.READY)
    report_sample(server)
    answer_split_requests(server, 20)
    assert report_sample(server, local_compute_tokens=8000).kv_watch["not_transferred"]


def test_a_split_that_works_again_is_noticed_too() -> None:
    server = make_server(ServerRole.DECODE, S.READY)
    report_sample(server)
    answer_split_requests(server, 20)
    report_sample(server, local_compute_tokens=8000)
    assert "not_transferred" not in report_sample(server, local_compute_tokens=8000, external_kv_tokens=400).kv_watch


def test_hand_offs_that_work_are_left_alone() -> None:
    server = make_server(ServerRole.DECODE, S.READY)
    report_sample(server)
    answer_split_requests(server, 20)
    fresh = report_sample(server, external_kv_tokens=8000, local_compute_tokens=20)
    assert "not_transferred" not in fresh.kv_watch


def test_readings_of_gpus_are_not_written_with_each_report_but_what_lasts_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "READINGS_EVERY_S", 3600.0)

    def power_and_holders() -> tuple[float | None, list[object]]:
        row = Gpu.objects.get(host__name="gpu09")
        return row.power_w, row.holders

    reports.take(make_report("gpu09", gpus=[make_gpu(0, power_w=100.0)]))
    reports.take(make_report("gpu09", gpus=[make_gpu(0, power_w=200.0)]))
    assert power_and_holders() == (100.0, [])
    reports.take(make_report("gpu09", gpus=[make_gpu(0, power_w=300.0, holders=[{"pid": 7}])]))
    assert power_and_holders() == (300.0, [{"pid": 7}])


def test_readings_are_written_again_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "READINGS_EVERY_S", 0.0)
    for power_w in (100.0, 200.0):
        reports.take(make_report("gpu10", gpus=[make_gpu(0, power_w=power_w)]))
    assert Gpu.objects.get(host__name="gpu10").power_w == 200.0


def test_a_gpu_that_gave_its_place_to_another_is_gone() -> None:
    reports.take(make_report("gpu11", gpus=[make_gpu(0), make_gpu(1)]))
    reports.take(make_report("gpu11", gpus=[make_gpu(0), make_gpu(2)]))
    assert list(Gpu.objects.filter(host__name="gpu11").values_list("index", flat=True)) == [0, 2]
