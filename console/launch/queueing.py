"""Posting work to a queue without waiting for it. What is lost with the broker, the tick finds due again."""

import logging
from typing import Any

from kombu.exceptions import OperationalError

from console.celery import app

logger = logging.getLogger(__name__)

CHECKS = "checks"
CHECK_EXPIRES_S = 10.0
"""The tick posts a check each second while it is due; behind a long queue only the newest need to be left."""


def post(task: str, args: list[Any], queue: str, expires_s: float | None = None) -> bool:
    """False when the broker did not take it, which is logged. Raises nothing of the broker's."""
    try:
        app.send_task(task, args=args, queue=queue, expires=expires_s, ignore_result=True, retry=False)
    except OperationalError as error:
        logger.warning("%s could not be posted to %s, it will be later: %s", task, queue, error)
        return False
    return True


def verify_server(server_id: int, generation: int) -> bool:
    return post("console.verify", [server_id, generation], CHECKS, CHECK_EXPIRES_S)


def verify_pair(prefill_id: int, decode_id: int) -> bool:
    return post("console.verify_pair", [prefill_id, decode_id], CHECKS, CHECK_EXPIRES_S)
