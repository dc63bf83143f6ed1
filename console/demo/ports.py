"""Which ports a demo's servers get, so that two demos on one machine do not meet."""

import socket
import zlib
from pathlib import Path

FIRST, BLOCK, BLOCKS = 21000, 100, 90
"""21000 to 29999: below the range from which the kernel takes ports for outgoing connections."""


def pick_range(data_dir: Path) -> tuple[int, int]:
    """First and last port: the range of the last run, whose servers may still be there, else a free one."""
    kept = data_dir / "run" / "ports"
    if kept.exists():
        first, last = _parse(kept.read_text())
        _claim(first)
        return first, last
    begin = zlib.crc32(str(data_dir).encode())
    blocks = (FIRST + BLOCK * ((begin + step) % BLOCKS) for step in range(BLOCKS))
    first = next((block for block in blocks if _claim(block) and _is_free(block)), FIRST)
    last = first + BLOCK - 2
    kept.write_text(f"{first}-{last}")
    return first, last


def _claim(first: int) -> bool:
    """Binds the last port of the block while this process lives, so that demos which start at once see each other."""
    claim = socket.socket()
    try:
        claim.bind(("127.0.0.1", first + BLOCK - 1))
    except OSError:
        claim.close()
        return False
    claim.detach()
    return True


def _parse(text: str) -> tuple[int, int]:
    first, last = text.split("-")
    return int(first), int(last)


def _is_free(first: int) -> bool:
    """Nothing listens on any port of the block, whose last one is ours."""
    return all(not _listens(port) for port in range(first, first + BLOCK - 1))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
