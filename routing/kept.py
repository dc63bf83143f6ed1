"""What each worker said last of its counts, in memory that outlives it: its successor goes on from there, so no counter
goes backwards. What was counted after that, and told to nobody, is lost with the worker."""

import logging
import mmap
from typing import Final

from routing.shared import shared_words

logger = logging.getLogger(__name__)
REPORT_BYTES: Final = 4 * 2**20
"""Room for one report; a page takes memory when it is first written to."""


class Kept:
    """A place for each worker. Make it before they are forked; only its own worker writes to a place."""

    def __init__(self, workers: int) -> None:
        self._bytes = memoryview(mmap.mmap(-1, 2 * workers * REPORT_BYTES))
        self._states = shared_words(workers)
        """Twice the length of each last report, plus which of the two halves of its place it is in."""

    def write(self, worker: int, report: bytes) -> None:
        """A worker may be killed at any time, so the report before stays whole until this one is."""
        if len(report) > REPORT_BYTES:
            logger.warning("the figures of worker %d are too long to be kept when it ends", worker + 1)
            return
        half = 1 - (self._states[worker] & 1)
        at = (2 * worker + half) * REPORT_BYTES
        self._bytes[at : at + len(report)] = report
        self._states[worker] = len(report) << 1 | half

    def read(self, worker: int) -> bytes:
        """Empty when it has never told anything."""
        while True:
            state = self._states[worker]
            at = (2 * worker + (state & 1)) * REPORT_BYTES
            report = bytes(self._bytes[at : at + (state >> 1)])
            if self._states[worker] == state:
                return report
