"""What the scheduler is asked for, by its own word."""

import ctypes
import os
import platform
import struct
import subprocess
import sys

from routing.tuning import SCHED_ATTR, SCHED_SETATTR, SHORTEST_SLICE_NS

KERNEL = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
SHORT_NS = SHORTEST_SLICE_NS if KERNEL >= (6, 12) else 0
"""Before, all have the same."""
ASK = """
import os, subprocess, sys, threading
from routing.tuning import take_short_turns
from tests.routing.test_tuning import told
os.nice(3)
take_short_turns()
own = threading.Thread(target=lambda: print(*told()))
own.start()
own.join()
subprocess.run([sys.executable, "-c", "from tests.routing.test_tuning import told; print(*told())"], check=True)
"""


def told(pid: int = 0) -> tuple[int, int]:
    """Niceness and time slice in nanoseconds, by sched_getattr(2); 0 is the usual slice."""
    size = struct.calcsize(SCHED_ATTR)
    attributes = ctypes.create_string_buffer(size)
    number = SCHED_SETATTR[platform.machine()] + 1
    if ctypes.CDLL(None, use_errno=True).syscall(number, pid, attributes, size, 0):
        raise OSError(ctypes.get_errno(), "sched_getattr")
    *_, niceness, _, slice_ns, _, _ = struct.unpack(SCHED_ATTR, attributes.raw)
    return niceness, slice_ns


def test_threads_and_processes_get_short_turns_and_keep_their_niceness() -> None:
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    lines = [tuple(map(int, line.split())) for line in asked.stdout.splitlines()]
    assert lines == [(os.getpriority(os.PRIO_PROCESS, 0) + 3, SHORT_NS)] * 2
