"""Reports of many hosts, as their agents would publish them: each as often as an agent does, spread evenly in time.

python -m tests.benchmark.scale_reports BROKER_URL PREFIX HOSTS GPUS_EACH SERVERS_EACH

Every figure of a GPU and of an engine changes from report to report. A line `kill N` on standard input makes server N
(by its id) end by a signal, which its host reports at once; then `killed UNIX_TIME` is printed. `heal N` takes it back.
"""

import random
import select
import sys
import time
from typing import cast

import redis

from console.launch.contracts import EngineSample, GpuReport, HostReport, Inventory, ServerObservation
from console.launch.reporter import ReportChannel, channel_of

DEPLOYMENT = "scale"
EVERY_S = 2.0
STARTED_AT = time.time()


def host_name(number: int) -> str:
    return f"gpu{number:03}"


class Fleet:
    """Servers have the ids 1, 2, 3 … in the order of their hosts, as in a fresh database."""

    def __init__(self, broker_url: str, prefix: str, hosts: int, gpus_each: int, servers_each: int) -> None:
        self.hosts, self.gpus_each, self.servers_each = hosts, gpus_each, servers_each
        self.prefix = prefix
        self.client = redis.Redis.from_url(broker_url)
        self.channel = ReportChannel(broker_url, "")
        self.dead: set[int] = set()
        self.seq = 0

    def publish(self, number: int) -> None:
        self.channel._channel = channel_of(self.prefix, host_name(number))
        self.channel.publish(self.report(number))

    def report(self, number: int) -> HostReport:
        self.seq += 1
        first = number * self.servers_each + 1
        return HostReport(
            host=host_name(number),
            address="127.0.0.1",
            agent_started_at=STARTED_AT,
            seq=self.seq,
            sent_at=time.time(),
            inventory=inventory(host_name(number)),
            gpus=[gpu(number, index) for index in range(self.gpus_each)],
            servers=[self.server(number_of) for number_of in range(first, first + self.servers_each)],
        )

    def server(self, server_id: int) -> ServerObservation:
        alive = server_id not in self.dead
        return ServerObservation(
            server_id=server_id,
            generation=1,
            pid=1000 + server_id,
            process_started_at=STARTED_AT,
            alive=alive,
            group_pids=[1000 + server_id, 5000 + server_id] if alive else [],
            exit_code=None if alive else -9,
            stop_requested=False,
            phase="listening",
            phase_times={"spawned": STARTED_AT, "weights": STARTED_AT + 5, "listening": STARTED_AT + 30},
            last_line_at=time.time(),
            engine_id=f"engine-{server_id}",
            kv_cache_tokens=262144,
            version="0.31.0",
            cause=None,
            healthy=alive or None,
            sample=sample() if alive else None,
        )


def sample() -> EngineSample:
    now = time.time()
    counters = dict.fromkeys(EngineSample.__annotations__, round(1000 * (now - STARTED_AT), 1))
    shown = {"at": now, "running": random.randrange(64), "waiting": random.randrange(8), "kv_usage": random.random()}
    return cast(EngineSample, {**counters, **shown, "failed_transfers": 0.0, "expired_handoffs": 0.0})


def gpu(host: int, index: int) -> GpuReport:
    return GpuReport(
        index=index,
        uuid=f"GPU-{host:08}-{index:04}",
        model_name="GPU",
        simulated=True,
        memory_total_mib=81920,
        memory_used_mib=random.randrange(60000, 70000),
        utilization_percent=float(random.randrange(100)),
        temperature_c=float(random.randrange(40, 80)),
        power_w=float(random.randrange(200, 700)),
        holders=[{"pid": 1000 + index, "name": f"{DEPLOYMENT}-{index}", "memory_mib": 60000}],
    )


def inventory(name: str) -> Inventory:
    return Inventory(
        hostname=name,
        cpu_count=128,
        memory_total_mib=2_000_000,
        python="3.11.9",
        agent_version="0.1.0",
        engines={"vllm": "0.31.0", "nixl": "1.4.1", "nixl_pinned": "1.4.1", "path": "/opt/vllm/bin/vllm"},
        port_range=(21000, 21999),
        busy_ports=[21000, 21001, 21010, 21011],
        addresses=["127.0.0.1"],
        nics=[{"name": f"ib{n}", "addresses": [f"10.0.{n}.1"], "speed_mbps": 400_000} for n in range(4)],
    )


def obey(fleet: Fleet, line: str) -> None:
    deed, _, number = line.partition(" ")
    server_id = int(number)
    (fleet.dead.add if deed == "kill" else fleet.dead.discard)(server_id)
    fleet.publish((server_id - 1) // fleet.servers_each)
    print(f"{deed}ed {time.time()}", flush=True)


def run(fleet: Fleet) -> None:
    """Until standard input ends."""
    print("reporting", flush=True)
    began, sent = time.monotonic(), 0
    while True:
        due_at = began + sent * EVERY_S / fleet.hosts
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due_at - time.monotonic()))
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            obey(fleet, line.strip())
        if time.monotonic() >= due_at:
            fleet.publish(sent % fleet.hosts)
            sent += 1


if __name__ == "__main__":
    url, prefix, *counts = sys.argv[1:]
    run(Fleet(url, prefix, *map(int, counts)))
