"""A stream's state as something to keep: snapshots in memory, and files.

A snapshot is a plain dict:

    format, version    what it is
    model              the checkpoint's hash          layout   sha256 of the state's layout
    batch, position    sequences, and tokens so far
    arrays             float32 by name: state, spare, pooled_sum, pooled_count, and ring [n, B, min(position, L), d]

A file is an uncompressed .npz of the arrays, and `meta`, the rest as JSON in bytes. It is read without pickle, and no
array is read before its header has been found to declare what the stream holds.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import BundleError, InputError
from essm_deploy.runtime.npz import read_array, write_npz
from essm_deploy.runtime.stream_buffers import StreamBuffers
from essm_deploy.runtime.stream_layout import Layout
from essm_deploy.runtime.strict import JsonObject, parse_json
from essm_deploy.runtime.tensors import Array

FORMAT, VERSION = "essm-deploy stream state", 1
_RING = "ring"
_META = "meta"
_MAX_META = 1 << 16
_MAX_EXTRA = 1 << 20  # headers and the archive's directory
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError, BundleError)


class StreamState:
    """The state of one stream. All methods raise InputError if the stream is closed, or the state is not one of its own:
    same checkpoint, layout, batch and bound; the stream is then as it was."""

    def __init__(
        self,
        buffers: StreamBuffers,
        layout: Layout,
        *,
        model: str,
        bound: int | None,
        check: Callable[[], None],
        moved: Callable[[], None],
    ) -> None:
        self._buffers = buffers
        self._layout = layout
        self._bound = bound
        self._check = check
        self._moved = moved
        self._identity: JsonObject = {
            "format": FORMAT,
            "version": VERSION,
            "model": model,
            "layout": layout.info.state,
            "batch": layout.batch,
        }

    def checkpoint(self) -> dict[str, Any]:
        """A snapshot of now, independent of the stream."""
        self._check()
        arrays = {name: array.copy() for name, array in self._buffers.front.items()}
        if self._buffers.ring is not None:
            arrays[_RING] = self._buffers.ring.newest(min(self._buffers.position, self._buffers.ring.length))
        return {**self._identity, "position": self._buffers.position, "arrays": arrays}

    def rollback(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot of this stream or of another one over the same model."""
        self._check()
        position = self._position_of(snapshot)
        arrays = snapshot.get("arrays")
        shapes = self._shapes(position)
        if not isinstance(arrays, Mapping) or set(arrays) != set(shapes):
            raise self._refused(f"holds other arrays than {', '.join(sorted(shapes))}")
        for name, shape in shapes.items():
            self._check_array(name, arrays[name], shape)
        carried = {name: array for name, array in arrays.items() if name != _RING}
        self._buffers.restore(position, carried, arrays.get(_RING))
        self._moved()

    def reset(self) -> None:
        """As before the first token."""
        self._check()
        self._buffers.clear()
        self._moved()

    def save(self, path: str | Path) -> None:
        """Write a snapshot to an .npz file, replaced as a whole."""
        snapshot = self.checkpoint()
        arrays: dict[str, Array] = snapshot.pop("arrays")
        meta = np.frombuffer(json.dumps(snapshot).encode(), np.uint8)
        write_npz(Path(path), {_META: meta, **arrays})

    def load(self, path: str | Path) -> None:
        """Continue from a file that `save` wrote."""
        self._check()
        try:
            self._check_size(Path(path))
            with zipfile.ZipFile(path) as archive:
                snapshot = self._read(archive)
        except _DAMAGED as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise InputError(f"{path} is not a saved stream state: {reason}") from None
        self.rollback(snapshot)

    def _check_size(self, path: Path) -> None:
        largest = 4 * sum(prod(shape) for shape in self._shapes(self._layout.info.length).values())
        if path.stat().st_size > largest + _MAX_EXTRA:
            raise ValueError(f"it is larger than the {largest} bytes that this stream holds")

    def _read(self, archive: zipfile.ZipFile) -> JsonObject:
        meta = read_array(archive, _META, np.uint8, None, _MAX_META)
        snapshot = parse_json(meta.tobytes().decode(), _META)
        if not isinstance(snapshot, dict):
            raise ValueError("meta is not an object")
        shapes = self._shapes(self._position_of(snapshot))
        if {*archive.namelist()} != {f"{name}.npy" for name in (_META, *shapes)}:
            raise self._refused(f"holds other arrays than {', '.join(sorted(shapes))}")
        snapshot["arrays"] = {name: read_array(archive, name, np.float32, shape) for name, shape in shapes.items()}
        return snapshot

    def _position_of(self, snapshot: Mapping[str, Any]) -> int:
        """The snapshot's position, once everything but its arrays has been found to fit."""
        for name, ours in self._identity.items():
            theirs = snapshot.get(name)
            if theirs != ours or type(theirs) is not type(ours):
                raise self._refused(f"has the {name} {_shown(theirs)}, this stream has {_shown(ours)}")
        position = snapshot.get("position")
        if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < 2**62:
            raise self._refused(f"has the position {_shown(position)}")
        if self._bound is not None and position > self._bound:
            raise self._refused(f"is at token {position}, beyond the {self._bound} that this stream was opened for")
        return position

    def _shapes(self, position: int) -> dict[str, tuple[int, ...]]:
        shapes = dict(self._layout.carried)
        if self._buffers.ring is not None:
            shapes[_RING] = self._layout.around(min(position, self._buffers.ring.length))
        return shapes

    def _check_array(self, name: str, array: object, shape: tuple[int, ...]) -> None:
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
            found = f"{array.dtype.name} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise self._refused(f"has {name} as {found}, this stream has float32 {list(shape)}")
        if not np.isfinite(array).all():
            raise self._refused(f"has values in {name} that are not finite")

    def _refused(self, what: str) -> InputError:
        return InputError(f"the state {what}: it belongs to another stream; the stream is unchanged")


def _shown(value: object) -> str:
    return repr(value)[:40]
