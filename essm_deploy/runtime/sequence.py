"""Sequence engines: the whole input at once, padded to the length that was compiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import InputError, UnavailableError
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.session import Session, open_session
from essm_deploy.runtime.tensors import LENGTHS, Array, check_names, describe


class SequenceEngine:
    """A whole-sequence engine that takes shorter inputs: they are padded on the right, and `lengths` says where they
    end.

    Every input except `lengths` is [batch, time, ...]; the time axis is fixed when the engine is built. An output with
    a time axis ([batch, time, ...], at least three axes) is cut back to the input's length.
    """

    def __init__(self, root: Path, engine: Engine, threads: int | None = None, session: Session | None = None) -> None:
        if engine.kind != "sequence":
            raise UnavailableError(f"engine {engine.id!r} is a {engine.kind} engine, expected a sequence engine")
        self.engine = engine
        self.session = open_session(root, engine, threads) if session is None else session
        self._sequences = tuple(info for info in engine.inputs if info.name != LENGTHS)
        self._takes_lengths = len(self._sequences) < len(engine.inputs)
        self.length = _fixed_length(self._sequences)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What a call takes."""
        return self.engine.inputs

    def run(self, **inputs: Any) -> dict[str, Array]:
        """Compute all outputs for arrays [time, ...] or [batch, time, ...]; without a batch axis, the outputs have
        none.

        `lengths` ([batch], or one number) may be given where only the first steps of an input count; it defaults to the
        inputs' own length. Raises InputError for anything that the engine cannot take, longer inputs among it.
        """
        lengths = inputs.pop(LENGTHS, None) if self._takes_lengths else None
        check_names(inputs, self._sequences)
        arrays, batched = _batched({name: np.asarray(value) for name, value in inputs.items()}, self._sequences)
        batch, length = self._common_size(arrays)
        feed = {name: self._pad(array) for name, array in arrays.items()}
        if self._takes_lengths:
            feed[LENGTHS] = self._lengths(lengths, batch, length)
        outputs = self.session.run(feed)
        return {name: self._trim(value, length, batched) for name, value in outputs.items()}

    def _common_size(self, arrays: Mapping[str, Array]) -> tuple[int, int]:
        shapes = {array.shape[:2] for array in arrays.values()}
        if len(shapes) != 1:
            raise InputError(f"the inputs differ in batch or length: {sorted(shapes)}")
        batch, length = shapes.pop()
        if length == 0 or batch == 0:
            raise InputError("the input is empty: the engine takes at least one step")
        if self.length is not None and length > self.length:
            raise InputError(f"the input has {length} steps, engine {self.engine.id!r} takes at most {self.length}")
        return batch, length

    def _pad(self, array: Array) -> Array:
        missing = 0 if self.length is None else self.length - array.shape[1]
        if missing == 0:
            return array
        return np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))

    def _lengths(self, given: Any, batch: int, length: int) -> Array:
        info = next(info for info in self.engine.inputs if info.name == LENGTHS)
        if given is None:
            return np.full(batch, length, dtype=info.dtype)
        lengths = np.atleast_1d(np.asarray(given))
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
            raise InputError(f"'lengths' is {lengths.dtype.name} {list(lengths.shape)}, expected {batch} whole numbers")
        if lengths.min() < 1 or lengths.max() > length:
            raise InputError(f"'lengths' holds {int(lengths.min())} to {int(lengths.max())}, expected 1 to {length}")
        return lengths.astype(info.dtype)

    def _trim(self, value: Array, length: int, batched: bool) -> Array:
        if value.ndim >= 3 and value.shape[1] == self.length:
            value = value[:, :length]
        return value if batched else value[0]


def _fixed_length(infos: tuple[TensorInfo, ...]) -> int | None:
    for info in infos:
        if len(info.shape) >= 2 and isinstance(info.shape[1], int):
            return info.shape[1]
    return None


def _batched(arrays: dict[str, Array], infos: tuple[TensorInfo, ...]) -> tuple[dict[str, Array], bool]:
    missing = set()
    for info in infos:
        rank = arrays[info.name].ndim
        if rank not in (len(info.shape), len(info.shape) - 1) or len(info.shape) < 2:
            raise InputError(f"{info.name!r} has the shape {list(arrays[info.name].shape)}, the engine takes {describe(info)}")
        missing.add(len(info.shape) - rank)
    if len(missing) != 1:
        raise InputError("some inputs have a batch axis and some have none: give it to all or to none")
    if missing == {0}:
        return arrays, True
    return {name: array[np.newaxis] for name, array in arrays.items()}, False
