"""Small facts that all web processes share for a while: kept in Valkey.

While that is away each process falls back on its own memory: a double click is still caught where both clicks come to
the same process, and nobody is locked out.
"""

from django.core.cache import cache

from console import valkey


def is_first(name: str, kept_s: int) -> bool:
    """True for the first caller with this name within so many seconds, in whatever process."""
    try:
        return bool(valkey.client().set(_key(name), 1, nx=True, ex=kept_s))
    except valkey.Down:
        return bool(cache.add(name, 1, kept_s))


def forget(name: str) -> None:
    cache.delete(name)
    try:
        valkey.client().delete(_key(name))
    except valkey.Down:
        return


def count(name: str, kept_s: int) -> None:
    """One more. All are forgotten `kept_s` seconds after the first."""
    try:
        with valkey.client().pipeline(transaction=True) as pipe:
            pipe.incr(_key(name))
            pipe.expire(_key(name), kept_s, nx=True)
            pipe.execute()
    except valkey.Down:
        if not cache.add(name, 1, kept_s):
            cache.set(name, cache.get(name, 0) + 1, kept_s)


def counted(name: str) -> int:
    try:
        found = valkey.client().get(_key(name))
    except valkey.Down:
        return int(cache.get(name, 0))
    return int(found) if isinstance(found, bytes) else 0


def _key(name: str) -> str:
    return valkey.key("shared", name)
