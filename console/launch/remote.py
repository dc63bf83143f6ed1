"""Calls from the console to a host's agent, over the broker.

Launches and stops are sent after commit and may be lost with the broker: `tick` sends them again until the host reports
what it did with them, which is safe because both are idempotent per generation. Log tails and preflights wait for an
answer, briefly.
"""

import time
import uuid
from functools import partial
from typing import Any, cast

from django.db import transaction
from kombu.exceptions import OperationalError

from console.celery import app
from console.fleet.errors import Unavailable
from console.fleet.models import Host, Server
from console.launch import queueing
from console.launch.contracts import Check, LaunchSpec, LogTail

TAIL_TIMEOUT_S = 5.0
PREFLIGHT_TIMEOUT_S = 15.0
"""A preflight asks vLLM's environment for its versions, which imports it."""
POLL_EVERY_S = 0.05
DRILL_EXPIRES_S = 10
"""A host that hears of it later does nothing: nobody expects a drill any more."""
STOP_WAIT_S = 10.0
"""Between SIGTERM and SIGKILL for a server without requests: 0.5 to 3 s were seen, some more with leases held."""


def send_launch(spec: LaunchSpec, host: Host) -> None:
    """Asks the host to start it, once the present transaction has committed."""
    transaction.on_commit(partial(launch_now, spec, host.queue))


def send_stop(server: Server, drain_s: float = STOP_WAIT_S) -> None:
    """Asks the host to end the present start of it, once the present transaction has committed."""
    transaction.on_commit(partial(stop_now, server.own_host.queue, server.pk, server.generation, drain_s))


def send_drill(server: Server, who: str) -> None:
    """Asks the host to kill its simulated engine, once the present transaction has committed. Never sent again."""
    queue, args = server.own_host.queue, [server.pk, server.generation, who]
    transaction.on_commit(lambda: queueing.post("agent.drill", args, queue, DRILL_EXPIRES_S))


def launch_now(spec: LaunchSpec, queue: str) -> bool:
    return queueing.post("agent.launch", [spec], queue)


def stop_now(queue: str, server_id: int, generation: int, drain_s: float = STOP_WAIT_S) -> bool:
    return queueing.post("agent.stop", [server_id, generation, drain_s], queue)


def tail(server: Server, max_bytes: int) -> LogTail:
    """The end of the log of its present start. Raises Unavailable when its host does not answer in time."""
    answer = _ask(server.own_host, "agent.tail", [server.pk, server.generation, max_bytes], TAIL_TIMEOUT_S)
    return cast(LogTail, answer)


def preflight(host: Host, spec: LaunchSpec) -> list[Check]:
    """What would keep `spec` from starting on its host now. Raises Unavailable when it does not answer in time."""
    return cast("list[Check]", _ask(host, "agent.preflight", [spec], PREFLIGHT_TIMEOUT_S))


def _ask(host: Host, task: str, args: list[Any], timeout_s: float) -> Any:
    unanswered = Unavailable(
        f"Host {host.name} did not answer within {timeout_s:.0f} s. "
        "Look whether its agent runs and reaches the broker, then try again."
    )
    if host.last_seen_at is None:
        raise Unavailable(f"Host {host.name} has not reported yet. Start its agent, then try again.")
    try:
        state, answer = _answer(_send_for_answer(host.queue, task, args), timeout_s)
    except OperationalError as error:
        raise Unavailable("The broker does not answer, so no host can be asked. Start it, then try again.") from error
    if state == "SUCCESS":
        return answer
    if state == "FAILURE":
        raise Unavailable(f"Host {host.name} could not answer: {answer}. Its agent's log says more.")
    raise unanswered


def _send_for_answer(queue: str, task: str, args: list[Any]) -> str:
    """Sends without subscribing to the answer: Celery's subscription is one connection that threads must not share.

    The answer is kept under the host's name, since its login at the broker lets it write there only.
    """
    task_id = f"{queue}.{uuid.uuid4()}"
    message = app.amqp.create_task_message(task_id, task, args, {}, ignore_result=False)
    with app.producer_or_acquire() as producer, producer.connection._reraise_as_library_errors():
        app.amqp.send_task_message(producer, task, message, queue=queue, retry=False)
    return task_id


def _answer(task_id: str, timeout_s: float) -> tuple[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        found = app.backend.get_task_meta(task_id)
        if found["status"] in ("SUCCESS", "FAILURE"):
            return found["status"], found["result"]
        if time.monotonic() >= deadline:
            return "PENDING", None
        time.sleep(POLL_EVERY_S)
