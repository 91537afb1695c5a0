"""Streams as functions: a whole input in, the logits out. What measuring and verifying run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine, Manifest, TensorInfo
from essm_deploy.runtime.session import Session
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.stream_layout import fixed_batch
from essm_deploy.runtime.stream_select import stream_engine
from essm_deploy.runtime.tensors import Array, check_names


class StreamEngine:
    """One stream engine as a call: each pushes a chunk into a stream that goes on, as an app's does.

    The stream starts anew where its `overflow` ends it. An anchor is not run: it is another engine.
    """

    def __init__(self, root: Path, engine: Engine, threads: int | None = None) -> None:
        pool = EnginePool(root, [engine], threads=threads)
        self.engine = engine
        self.session: Session = pool.session(engine.id)
        self._inputs = tuple(info for info in engine.inputs if info.name in ("tokens", "features"))
        self._names = {info.name for info in self._inputs}
        self._stream = Stream(pool, engine, batch=fixed_batch(engine) or 1)
        refuses = engine.stream is not None and engine.stream.overflow == "refuse"
        self._end = self._stream.length - (engine.chunk or 1) if refuses else None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What a call takes: the chunk, and nothing of the state."""
        return self._inputs

    def run(self, **inputs: Any) -> dict[str, Array]:
        """Push one chunk; the logits after its last token."""
        if inputs.keys() != self._names:  # nothing that an app does not do may be part of a step that takes 100 microseconds
            check_names(inputs, self._inputs)
        if self._end is not None and self._stream.position > self._end:
            self._stream.state.reset()
        return {"logits": self._stream.push(*inputs.values())}


def stream_outputs(
    root: Path,
    manifest: Manifest,
    budget: int | str,
    chunk: int | Sequence[int],
    inputs: Array,
    *,
    threads: int | None = None,
    max_length: int | None = None,
) -> Array:
    """Push `inputs` (tokens [B, T] or features [B, T, F]) through the bundle's stream engines, chunk by chunk.

    `chunk` is one length, the last push being what remains, or the lengths of all pushes, which add up to T. Returns
    float32 logits [B, T, V] of a language model, or [B, pushes, labels] of a classifier after every push. `max_length`
    is the stream's. Raises InputError for lengths that do not fit, and whatever Stream raises.
    """
    pool = EnginePool.of(root, manifest, threads)
    engine = stream_engine(manifest, budget, len(inputs))
    with Stream(pool, engine, batch=len(inputs), max_length=max_length) as stream:
        positions = stream.answers_everywhere
        pieces = [stream.push(piece, all_positions=positions) for piece in _pieces(inputs, chunk)]
    return np.concatenate(pieces, axis=1) if positions else np.stack(pieces, axis=1)


def _pieces(inputs: Array, chunk: int | Sequence[int]) -> Iterator[Array]:
    total = inputs.shape[1]
    lengths = _even(total, chunk) if isinstance(chunk, int) else list(chunk)
    if sum(lengths) != total or min(lengths, default=0) < 1:
        raise InputError(f"pushes of {lengths[:8]} do not make up an input of {total} steps")
    start = 0
    for length in lengths:
        yield inputs[:, start : start + length]
        start += length


def _even(total: int, chunk: int) -> list[int]:
    return [min(chunk, total - start) for start in range(0, total, max(chunk, 1))]
