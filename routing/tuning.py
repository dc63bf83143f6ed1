"""What a process that carries many streams wants of its machine. Called once, when everything is imported."""

import gc
import resource

YOUNG_OBJECTS = 20_000
"""Requests leave no reference cycles to speak of, so the collector need not look after every 700 new objects: it took
a tenth of the router's CPU. A full collection over all that a console has loaded held up every stream for 68 ms."""


def tune_process() -> None:
    """Two sockets per stream: takes as many open files as allowed. Leaves what is loaded out of garbage collection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
