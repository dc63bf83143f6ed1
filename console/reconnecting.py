"""The part of our Celery workers (the console's and the agents') that comes back when the broker was away."""

from typing import Any

from celery.worker.consumer import Consumer


class ReconnectingConsumer(Consumer):
    """Sends nothing more over a connection that was lost.

    Celery and kombu 5.7 do: they hand unfinished messages back while they close it, and acknowledge tasks that end
    later. Both fail on the half-closed connection with an AttributeError, which ends the whole worker. The broker still
    holds those messages and delivers them again after its visibility timeout; all our tasks may run twice.
    """

    task_consumer: Any

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        channel = getattr(self.task_consumer, "channel", None)
        if channel is not None:
            channel.do_restore = False
            channel.basic_ack = channel.basic_reject = _send_nothing
        super().on_connection_error_after_connected(exc)


def _send_nothing(*_: object, **__: object) -> None:
    """Instead of an acknowledgement that nobody can receive."""
