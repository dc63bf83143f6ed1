"""Background loops of the web process. Each runs until told to stop; one that crashes is logged and started again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
ASK_AGAIN_AFTER_S = 0.2

Loop = Callable[[], Awaitable[None]]


class Background:
    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.restarts = 0

    def start(self, name: str, loop: Loop) -> None:
        self._tasks.append(asyncio.create_task(self._keep_running(name, loop), name=name))

    async def stop(self) -> None:
        """Returns when all have ended.

        Asks again and again: a library that is connecting just then may take a cancellation for a failure of its own.
        """
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=ASK_AGAIN_AFTER_S)
        self._tasks.clear()

    async def _keep_running(self, name: str, loop: Loop) -> None:
        while True:
            try:
                await loop()
            except Exception:
                log.exception("%s crashed and starts again", name)
                self.restarts += 1
            await asyncio.sleep(RESTART_AFTER_S)
