"""Which other files an ONNX graph reads, found without the onnx package.

ONNX Runtime maps "external data" by the path that stands in the graph. Recent versions refuse a path that leaves the
graph's folder, older ones do not; and no version knows which files the manifest vouches for. So the graph is walked
here first: it is protobuf, of which only the field numbers and lengths are needed (onnx.proto3, wire format of
protobuf).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from essm_deploy.errors import BundleError

# Message kinds, and for each the length-delimited fields that can lead to a TensorProto's external_data.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH = 32


def external_locations(path: Path) -> set[str]:
    """The `location` of every external tensor in the ONNX file at `path`, as written there.

    Raises BundleError if the file is not well-formed protobuf.
    """
    if path.stat().st_size == 0:
        raise BundleError(f"{path} is empty, expected an ONNX graph")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return set(_locations(data, 0, len(data), "model", 0))
        except (IndexError, UnicodeDecodeError):
            raise BundleError(f"{path} is not an ONNX graph: its bytes are not well-formed protobuf") from None


def _locations(data: mmap.mmap, start: int, end: int, kind: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise IndexError
    for field, begin, stop in _fields(data, start, end):
        child = _CHILDREN[kind].get(field)
        if child == "entry":
            key_value = {number: data[a:b] for number, a, b in _fields(data, begin, stop)}
            if key_value.get(1) == b"location":
                yield key_value.get(2, b"").decode("utf-8")
        elif child is not None:
            yield from _locations(data, begin, stop, child, depth + 1)


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Field number, start and end of every length-delimited field; the others are stepped over."""
    while position < end:
        tag, position = _varint(data, position, end)
        wire = tag & 7
        if wire == 0:
            _, position = _varint(data, position, end)
        elif wire == 2:
            size, position = _varint(data, position, end)
            if size > end - position:
                raise IndexError
            yield tag >> 3, position, position + size
            position += size
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise IndexError
    if position > end:
        raise IndexError


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise IndexError
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
