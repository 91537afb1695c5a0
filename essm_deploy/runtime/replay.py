"""Running an engine once on given arrays: how its outputs are compared where it can only run on another machine.

Rows are the first axis of every input. A sequence engine of a fixed batch takes that many rows a call, one of any batch takes
all at once. A stream engine is given its rows one by one (or as many as it is compiled for) from an empty state, in pieces of
its chunk: up to `lengths` where that is given, and the outputs are the logits at every position of a language model
[rows, steps, vocabulary], or those after the last step of a classifier [rows, labels].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.sequence import SequenceEngine
from essm_deploy.runtime.session import Session
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.stream_layout import fixed_batch
from essm_deploy.runtime.tensors import LENGTHS, Array

Arrays = dict[str, Array]


class Replay:
    """An opened engine that takes rows of inputs. Raises what opening an engine raises."""

    def __init__(self, root: Path, engine: Engine, threads: int | None = None) -> None:
        self.engine = engine
        self._pool = EnginePool(root, [engine], threads=threads)
        self.session: Session = self._pool.session(engine.id)

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """All outputs for all rows. InputError for inputs that the engine cannot take."""
        rows = _rows(inputs)
        call = self._stream if self.engine.kind == "stream" else self._sequence
        step = self._batch(rows)
        if rows % step:
            raise InputError(f"{rows} rows are no whole number of batches of {step}, for which the engine is compiled")
        pieces = [call({name: array[at : at + step] for name, array in inputs.items()}) for at in range(0, rows, step)]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _batch(self, rows: int) -> int:
        if self.engine.kind == "stream":
            return fixed_batch(self.engine) or 1
        size = next((info.shape[0] for info in self.engine.inputs if info.shape), None)
        return size if isinstance(size, int) else rows

    def _sequence(self, inputs: Arrays) -> Arrays:
        return SequenceEngine(self._pool.root, self.engine, session=self.session).run(**inputs)

    def _stream(self, inputs: Arrays) -> Arrays:
        data = next((array for name, array in inputs.items() if name != LENGTHS), None)
        if data is None or data.ndim < 2 or len(inputs) - (LENGTHS in inputs) != 1:
            raise InputError("a stream engine takes one input [rows, steps, ...], and lengths [rows] if they differ")
        steps, chunk = _steps(inputs, data.shape[1]), self.engine.chunk or 1
        with Stream(self._pool, self.engine, batch=len(data), max_length=steps) as stream:
            everywhere = stream.answers_everywhere
            starts = range(0, steps, chunk)
            pushed = [stream.push(data[:, at : min(steps, at + chunk)], all_positions=everywhere) for at in starts]
        return {"logits": np.concatenate(pushed, axis=1) if everywhere else pushed[-1]}


def _rows(inputs: Mapping[str, Array]) -> int:
    counts = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError("the inputs have no rows, or not equally many: the first axis of every array counts them")
    return counts.pop()


def _steps(inputs: Arrays, most: int) -> int:
    if LENGTHS not in inputs:
        return most
    lengths = {int(value) for value in inputs[LENGTHS].ravel()} if inputs[LENGTHS].dtype.kind in "iu" else set[int]()
    if len(lengths) != 1 or not 1 <= min(lengths) <= most:
        raise InputError(f"'lengths' holds {sorted(lengths)[:4]}, expected one number from 1 to {most} for the rows of a call")
    return lengths.pop()
