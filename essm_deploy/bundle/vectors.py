"""Test vectors: inputs and the float64 reference's outputs at every budget of a bundle, and their replay.

Needs numpy and the runtime only, so that a device can verify a bundle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import IntegrityError

VECTORS = "test_vectors.npz"
FP32_BOUND = 1e-5
"""Largest relative error of an fp32 engine that `build` accepts. Tests hold the shipped models to 2e-6; a deeper model adds
up more rounding, while a wrong graph is off by far more."""

_MAX_BYTES = 2**30

Arrays = Mapping[str, NDArray[Any]]


class Runnable(Protocol):
    """Anything with the runtime's `run`."""

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Arrays in, arrays out, by name."""
        ...


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


def max_relative_error(engine: Runnable, inputs: Arrays, expected: Arrays) -> float:
    """The largest ||y - ref|| / ||ref|| (2-norm) over the vectors and outputs; each vector is one call of batch 1."""
    count = len(next(iter(inputs.values())))
    worst = 0.0
    for i in range(count):
        results = engine.run({name: array[i : i + 1] for name, array in inputs.items()})
        for name, reference in expected.items():
            worst = max(worst, relative_error(results[name][0], reference[i]))
    return worst


def relative_error(value: NDArray[Any], reference: NDArray[Any]) -> float:
    """||value - reference|| / ||reference|| in float64; infinity if a value is not finite."""
    difference = np.linalg.norm(np.asarray(value, np.float64) - reference)
    error = float(difference / np.linalg.norm(reference))
    return error if np.isfinite(error) else float("inf")
