"""What is pushed into a stream: checked, at little cost, before anything is touched."""

from __future__ import annotations

from typing import Any

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.runtime.tensors import Array


class InputReader:
    """Turns tokens [n] or [B, n], or frames [n, F] or [B, n, F], into [B, n, ...]. `declared` has the shape (B, any, ...)."""

    def __init__(self, declared: TensorInfo) -> None:
        self._declared = declared
        self._rank = len(declared.shape)
        self._batch = declared.shape[0]
        self._rest = declared.shape[2:]
        self._floats = declared.dtype.startswith("float")
        self._dtype = np.dtype(declared.dtype)
        self._maximum = declared.maximum

    def read(self, inputs: Any) -> tuple[Array, bool]:
        """The array with a batch axis, and whether it came with one. Raises InputError for what the engine cannot take."""
        array = np.asarray(inputs)
        batched = array.ndim == self._rank
        if array.ndim == self._rank - 1:
            array = array[None]
        shape = array.shape
        if len(shape) != self._rank or shape[0] != self._batch or shape[2:] != self._rest:
            raise InputError(f"the input has the shape {list(np.shape(inputs))}, the stream takes {self._describe()}")
        if shape[1] == 0:
            raise InputError(f"the input is empty: the stream takes {self._describe()}, n at least 1")
        if self._floats:
            self._check_floats(array)
        else:
            self._check_tokens(array)
        return array, batched

    def _check_tokens(self, array: Array) -> None:
        if array.dtype.kind not in "iu":
            raise InputError(f"the input is {array.dtype.name}, the stream takes {self._describe()}")
        low, high = (int(array.min()), int(array.max())) if array.size > 1 else (array.item(),) * 2
        if low < 0 or (self._maximum is not None and high > self._maximum):
            most = "the largest id" if self._maximum is None else self._maximum
            raise InputError(f"the tokens range from {low} to {high}, the model takes 0 to {most}")

    def _check_floats(self, array: Array) -> None:
        if array.dtype != self._dtype:
            raise InputError(f"the input is {array.dtype.name}, the stream takes {self._describe()}: convert it with astype")
        if not np.isfinite(array).all():
            raise InputError("the input holds NaN or infinite values: expected finite ones; the stream is unchanged")

    def _describe(self) -> str:
        sizes = ", ".join(map(str, ("n", *self._rest)))
        kind = self._declared.dtype if self._floats else "whole numbers"
        return f"{kind} [{sizes}] or [{self._batch}, {sizes}]" if self._batch == 1 else f"{kind} [{self._batch}, {sizes}]"
