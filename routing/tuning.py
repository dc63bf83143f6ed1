"""What a process that carries many streams wants of its machine. Called once, when everything is imported."""

import ctypes
import gc
import logging
import os
import platform
import resource
import struct

logger = logging.getLogger(__name__)
YOUNG_OBJECTS = 20_000
"""Requests leave no reference cycles to speak of, so the collector need not look after every 700 new objects: it took
a tenth of the router's CPU. A full collection over all that a console has loaded held up every stream for 68 ms."""
SHORTEST_SLICE_NS = 100_000
"""The kernel takes no less."""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, for which Python has no name."""
SCHED_ATTR = "IIQiIQQQ"
"""size, policy, flags, nice, priority, runtime, deadline, period (`struct sched_attr`, sched_setattr(2))"""


def tune_process() -> None:
    """Two sockets per stream: takes as many open files as allowed. Leaves what is loaded out of garbage collection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def take_short_turns() -> None:
    """Asks the scheduler for the shortest time slice, for this thread and for all threads and processes that it starts.

    A stream's token is little work at the right moment. On a full core Linux (6.12 and later) does not let it wait for
    the end of a long slice, whether the one that wakes up has a shorter one or the one that runs had a short one;
    everybody's share of the core stays what it was. Elsewhere, or where it is forbidden, all stays as it is.
    """
    number = SCHED_SETATTR.get(platform.machine())
    policy = os.sched_getscheduler(0) if number is not None else None
    if policy != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    size = struct.calcsize(SCHED_ATTR)
    wish = struct.pack(SCHED_ATTR, size, policy, 0, niceness, 0, SHORTEST_SLICE_NS, 0, 0)
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, wish, 0):
        logger.info("no short time slices: %s", os.strerror(ctypes.get_errno()))
