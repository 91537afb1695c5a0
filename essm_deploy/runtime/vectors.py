"""Test vectors as a device reads them, and how far from the float64 reference an engine may be."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from essm_deploy.errors import IntegrityError
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.tensors import Array

VECTORS = "test_vectors.npz"
FP32_BOUND = 1e-5
"""Largest relative error of an fp32 engine that `build` accepts. Tests hold the shipped models to 2e-6; a deeper model adds
up more rounding, while a wrong graph is off by far more."""

STREAM_BOUND = 2e-4
"""The same for a stream engine, whose state rounds at every token."""

HALF_BOUNDS = {"fp16": 2e-3, "bf16": 2e-2}
"""The same for an engine whose GEMMs round to 11 or 8 bits, while all that is carried from layer to layer is float32."""

_MAX_BYTES = 2**30

Arrays = Mapping[str, Array]


def read_vectors(path: Path) -> tuple[dict[str, Array], dict[str, dict[str, Array]]]:
    """Inputs, and outputs by budget id. IntegrityError if the file is not what `build` wrote."""
    inputs: dict[str, Array] = {}
    outputs: dict[str, dict[str, Array]] = {}
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


def relative_error(value: Array, reference: Array) -> float:
    """||value - reference|| / ||reference|| in float64; infinity if a value is not finite."""
    difference = np.linalg.norm(np.asarray(value, np.float64) - reference)
    error = float(difference / np.linalg.norm(reference))
    return error if np.isfinite(error) else float("inf")
