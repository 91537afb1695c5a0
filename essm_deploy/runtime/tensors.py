"""Arrays against their declarations: an error here names the input, what came and what the engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.manifest import TensorInfo

Array = np.ndarray[Any, np.dtype[Any]]

LENGTHS = "lengths"
"""The input [batch] that says how many steps of each row are real."""


def check_inputs(inputs: Mapping[str, Array], declared: Sequence[TensorInfo]) -> None:
    """Raise InputError unless `inputs` has exactly the declared names, dtypes, ranks, fixed sizes and ranges.

    A named dimension may have any size of at least 1, the same one wherever the name occurs.
    """
    check_names(inputs, declared)
    sizes: dict[str, int] = {}
    for info in declared:
        _check_array(inputs[info.name], info)
        _check_shape(inputs[info.name].shape, info, sizes)


def check_names(given: Mapping[str, object], declared: Sequence[TensorInfo]) -> None:
    """Raise InputError for an input that is missing or unknown."""
    names = [info.name for info in declared]
    for name in given:
        if name not in names:
            raise InputError(f"unknown input {name!r}: the engine takes {', '.join(names)}")
    for name in names:
        if name not in given:
            raise InputError(f"the input {name!r} is missing: the engine takes {', '.join(names)}")


def minimum(info: TensorInfo) -> int:
    """The least value of a bounded integer input: token ids start at 0, a length at 1."""
    return 1 if info.name == LENGTHS else 0


def describe(info: TensorInfo) -> str:
    """ "float32 [batch, 100, 40]"."""
    return f"{info.dtype} [{', '.join(str(size) for size in info.shape)}]"


def _check_array(array: Array, info: TensorInfo) -> None:
    if array.dtype.name != info.dtype:
        raise InputError(f"{info.name!r} is {array.dtype.name}, the engine takes {describe(info)}: convert it with astype")
    if array.ndim != len(info.shape):
        raise InputError(f"{info.name!r} has the shape {list(array.shape)}, the engine takes {describe(info)}")
    if info.maximum is not None and array.size:
        low, high, least = int(array.min()), int(array.max()), minimum(info)
        if low < least or high > info.maximum:
            raise InputError(f"{info.name!r} holds values from {low} to {high}, the engine takes {least} to {info.maximum}")


def _check_shape(shape: tuple[int, ...], info: TensorInfo, sizes: dict[str, int]) -> None:
    for have, want in zip(shape, info.shape, strict=True):
        expected = sizes.setdefault(want, have) if isinstance(want, str) else want
        if have != expected or have == 0:
            raise InputError(f"{info.name!r} has the shape {list(shape)}, the engine takes {describe(info)}")
