"""When beat's tasks are due: counted by a clock that nobody can set.

Celery counts by the wall clock. When that is set back, an hour say, beat would send nothing for an hour: no drain would
end, no silent host be noticed, no record be stored.
"""

import time
from datetime import UTC, datetime, timedelta

from celery.schedules import schedule

_BEGAN_AT, _BEGAN_S = datetime.now(UTC), time.monotonic()


def steady_now() -> datetime:
    """The time of day as it was when this process began, and from there on by the clock that only goes forward."""
    return _BEGAN_AT + timedelta(seconds=time.monotonic() - _BEGAN_S)


def every(seconds: float) -> schedule:
    return schedule(timedelta(seconds=seconds), nowfun=steady_now)
