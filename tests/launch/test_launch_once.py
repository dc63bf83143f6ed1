"""One start, one process: whatever is delivered twice, at once, late or in the wrong order."""

import threading

from tests.launch.hosts import TestHost


def test_a_launch_starts_the_process(host: TestHost) -> None:
    host.launch()
    seen = host.seen()
    assert seen["alive"]
    assert seen["pid"] in seen["group_pids"]
    assert seen["process_started_at"] is not None


def test_a_second_delivery_starts_nothing(host: TestHost) -> None:
    spec = host.launch()
    first = host.seen()["pid"]
    host.starts.launch(spec)
    assert host.pids() == [first]


def test_two_deliveries_at_once_start_one_process(host: TestHost) -> None:
    spec = host.spec()
    threads = [threading.Thread(target=host.starts.launch, args=[spec]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert host.pids() == [host.seen()["pid"]]


def test_a_launch_older_than_a_known_one_starts_nothing(host: TestHost) -> None:
    host.launch(generation=5)
    host.launch(generation=4)
    assert host.pids() == [host.seen()["pid"]]
    assert host.seen()["generation"] == 5


def test_a_second_delivery_after_the_end_starts_nothing(host: TestHost) -> None:
    spec = host.launch()
    host.starts.stop(7, 1, drain_s=0)
    host.wait(lambda seen: not seen["group_pids"])
    host.starts.launch(spec)
    assert host.pids() == []


def test_a_launch_that_arrives_after_its_own_stop_starts_nothing(host: TestHost) -> None:
    host.starts.stop(7, 1, drain_s=0)
    host.launch(generation=1)
    assert host.pids() == []
