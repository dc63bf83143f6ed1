"""Pictures to send, made here so that no image library is needed, and the parts of messages that carry them."""

import base64
import random
import struct
import zlib

SIDE = 12


def png(seed: int) -> bytes:
    """Pixels of any colours, another picture for each seed."""
    pixels = random.Random(seed)
    rows = b"".join(b"\0" + pixels.randbytes(3 * SIDE) for _ in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(picture: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H////6"
    "/+b9//j/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAf/EABsQAAMAAgMAAAAAAAAAAAAAAAECAyIxUeHw/9oACAEBAAA/ABUDKYxI"
    "EgM6c9e1v//Z"
)
"""Eight by eight shades of grey."""
