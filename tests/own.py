"""What a test process has for itself on a machine where others run tests as well."""

import os

WORKERS = 4


def number(count: int) -> int:
    """Below `count`: another one for each worker of a run, up to four, and mostly another for another run."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return os.getppid() % (count // WORKERS) * WORKERS + worker % WORKERS
