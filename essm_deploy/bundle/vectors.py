"""Test vectors: inputs and the float64 reference's outputs at every budget of a bundle, and their replay.

Needs numpy and the runtime only, so that a device can verify a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.session import SessionFactory, open_session
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.tensors import LENGTHS
from essm_deploy.runtime.vectors import HALF_BOUNDS, VECTORS, Arrays, bound_of, read_vectors, relative_error

__all__ = ["HALF_BOUNDS", "VECTORS", "Arrays", "bound_of", "engine_error", "read_vectors", "relative_error", "write_vectors"]

Run = Callable[[dict[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def write_vectors(path: Path, inputs: Arrays, outputs: Mapping[str, Arrays]) -> None:
    """Store inputs, and outputs by budget id ("k8"). Leading axis of every array: the vector."""
    arrays = {f"input/{name}": array for name, array in inputs.items()}
    for budget, values in outputs.items():
        arrays |= {f"output/{budget}/{name}": array for name, array in values.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})


def engine_error(
    root: Path,
    engines: Iterable[Engine],
    engine: Engine,
    inputs: Arrays,
    expected: Arrays,
    opener: SessionFactory = open_session,
) -> float:
    """The largest ||y - ref|| / ||ref|| (2-norm) of an engine over the vectors and outputs.

    A sequence engine gets each vector as one call, a stream engine in pieces of its chunk, with the other `engines` at hand for
    what remains. Vectors are played one by one, so the engine's batch must be 1 or free. `opener` opens the engines.
    """
    run = _streamed(root, list(engines), engine, opener) if engine.kind == "stream" else opener(root, engine, None).run
    count = len(next(iter(inputs.values())))
    worst = 0.0
    for i in range(count):
        results = run({name: array[i : i + 1] for name, array in inputs.items()})
        worst = max([worst, *(relative_error(results[name][0], reference[i]) for name, reference in expected.items())])
    return worst


def _streamed(root: Path, engines: list[Engine], engine: Engine, opener: SessionFactory) -> Run:
    pool = EnginePool(root, [engine, *(other for other in engines if other.id != engine.id)], opener=opener)

    def run(inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        data = next(array for name, array in inputs.items() if name != LENGTHS)
        total = int(inputs[LENGTHS][0]) if LENGTHS in inputs else data.shape[1]
        with Stream(pool, engine, batch=1, max_length=total) as stream:
            everywhere = stream.answers_everywhere
            starts = range(0, total, engine.chunk or 1)
            pushed = [stream.push(data[:, s : min(total, s + (engine.chunk or 1))], all_positions=everywhere) for s in starts]
        return {"logits": np.concatenate(pushed, axis=1) if everywhere else pushed[-1]}

    return run
