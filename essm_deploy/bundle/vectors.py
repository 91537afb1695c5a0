"""Test vectors: inputs and the float64 reference's outputs at every budget of a bundle, and their replay.

Needs numpy and the runtime only, so that a device can verify a bundle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import IntegrityError
from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.session import SessionFactory, open_session
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.tensors import LENGTHS

VECTORS = "test_vectors.npz"
FP32_BOUND = 1e-5
"""Largest relative error of an fp32 engine that `build` accepts. Tests hold the shipped models to 2e-6; a deeper model adds
up more rounding, while a wrong graph is off by far more."""

STREAM_BOUND = 2e-4
"""The same for a stream engine, whose state rounds at every token."""

HALF_BOUNDS = {"fp16": 2e-3, "bf16": 2e-2}
"""The same for an engine whose GEMMs round to 11 or 8 bits, while all that is carried from layer to layer is float32."""

_MAX_BYTES = 2**30

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[dict[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def write_vectors(path: Path, inputs: Arrays, outputs: Mapping[str, Arrays]) -> None:
    """Store inputs, and outputs by budget id ("k8"). Leading axis of every array: the vector."""
    arrays = {f"input/{name}": array for name, array in inputs.items()}
    for budget, values in outputs.items():
        arrays |= {f"output/{budget}/{name}": array for name, array in values.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})


def read_vectors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, NDArray[Any]]]]:
    """Inputs, and outputs by budget id. IntegrityError if the file is not what `write_vectors` wrote."""
    inputs: dict[str, NDArray[Any]] = {}
    outputs: dict[str, dict[str, NDArray[Any]]] = {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise IntegrityError(f"{path}: larger than {_MAX_BYTES} bytes; not test vectors")
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                side, _, rest = key.partition("/")
                budget, _, name = rest.partition("/")
                target = inputs if side == "input" else outputs.setdefault(budget, {})
                target[rest if side == "input" else name] = file[key]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise IntegrityError(f"{path}: not test vectors ({str(error).splitlines()[0]})") from None
    return inputs, outputs


def bound_of(engine: Engine) -> float:
    """What an engine's error may be: by its precision, and by its kind where that is fp32."""
    return HALF_BOUNDS.get(engine.precision, STREAM_BOUND if engine.kind == "stream" else FP32_BOUND)


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


def relative_error(value: NDArray[Any], reference: NDArray[Any]) -> float:
    """||value - reference|| / ||reference|| in float64; infinity if a value is not finite."""
    difference = np.linalg.norm(np.asarray(value, np.float64) - reference)
    error = float(difference / np.linalg.norm(reference))
    return error if np.isfinite(error) else float("inf")
