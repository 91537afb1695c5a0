"""Grey PNG images in numpy: what Pathfinder's files are, and no more (8 bits, not interlaced, at most 4096 pixels a side).

W3C, Portable Network Graphics, 2nd edition: chunks (5), filters (9). An image needs no other package then.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError

MAX_SIDE = 4096
LUMA = np.array([0.299, 0.587, 0.114])  # of red, green and blue, ITU-R BT.601

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type: grey, RGB, grey with alpha, RGB with alpha

Pixels = npt.NDArray[np.uint8]


def read_png(path: Path) -> Pixels:
    """Grey values [height, width]; of a colour image the luma of ITU-R BT.601. InputError if it is not such a PNG."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a PNG image") from error
    try:
        return decode_png(data)
    except (ValueError, struct.error, zlib.error) as error:
        raise InputError(f"{path}: not a whole 8-bit PNG image ({error}); download it again") from error


def decode_png(data: bytes) -> Pixels:
    """The same from bytes; ValueError or zlib.error for anything else."""
    if data[:8] != _SIGNATURE:
        raise ValueError(f"begins with {data[:8]!r}")
    width, height, channels, packed = 0, 0, 0, []
    for kind, body in _chunks(data):
        if kind == b"IHDR":
            width, height, channels = _header(body)
        elif kind == b"IDAT":
            packed.append(body)
    if not channels:
        raise ValueError("no IHDR chunk")
    unpacker, stride = zlib.decompressobj(), width * channels
    raw = unpacker.decompress(b"".join(packed), height * (stride + 1))
    if len(raw) < height * (stride + 1):
        raise ValueError(f"{len(raw)} bytes of pixels, {height * (stride + 1)} expected")
    return _grey(_unfilter(np.frombuffer(raw, np.uint8).reshape(height, stride + 1), channels), channels)


def encode_png(image: Pixels) -> bytes:
    """A grey image [height, width] as PNG, without filters."""
    height, width = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + size]
        if len(body) < size or len(data) < place + 12 + size:
            raise ValueError(f"chunk {kind!r} ends early")
        if struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] != zlib.crc32(kind + body):
            raise ValueError(f"chunk {kind!r} has a wrong checksum")
        found.append((kind, body))
        if kind == b"IEND":
            return found
        place += 12 + size
    raise ValueError("no IEND chunk: the file ends early")


def _header(body: bytes) -> tuple[int, int, int]:
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise ValueError(f"{width} x {height} pixels")
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise ValueError(f"bit depth {depth}, colour type {colour}, interlacing {interlaced}")
    return width, height, _CHANNELS[colour]


def _unfilter(rows: Pixels, channels: int) -> Pixels:
    """Undo each row's filter, which its first byte names: none, left, up, average, Paeth."""
    out = np.zeros((len(rows) + 1, rows.shape[1] - 1), np.uint8)  # row 0 is the zeros above the image
    for y, row in enumerate(rows, start=1):
        kind, line = int(row[0]), row[1:]
        if kind == 0:
            out[y] = line
        elif kind == 1:
            out[y] = np.cumsum(line.reshape(-1, channels), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            out[y] = line + out[y - 1]
        elif kind in (3, 4):
            _predicted(out[y], line.tolist(), out[y - 1].tolist(), channels, kind)
        else:
            raise ValueError(f"row {y - 1} has filter {kind}")
    return out[1:]


def _predicted(out: Pixels, line: list[int], above: list[int], channels: int, kind: int) -> None:
    """Average and Paeth need the byte before, one after the other."""
    done = [0] * channels
    corner = [0] * channels + above
    for x, value in enumerate(line):
        left, up = done[x], above[x]
        done.append((value + ((left + up) // 2 if kind == 3 else _paeth(left, up, corner[x]))) & 255)
    out[:] = done[channels:]


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    if by_left <= by_up and by_left <= by_corner:
        return left
    return up if by_up <= by_corner else corner


def _grey(rows: Pixels, channels: int) -> Pixels:
    pixels = rows.reshape(len(rows), -1, channels)
    grey: Pixels = pixels[:, :, 0].copy() if channels < 3 else np.rint(pixels[:, :, :3] @ LUMA).astype(np.uint8)
    return grey
