"""Precisions by their names on the command line, as ONNX and as numpy types. bfloat16 comes from ml_dtypes."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

Precision = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")

MAIN_TYPES: dict[str, int] = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""The ONNX type of `main`: what the GEMMs outside the spectral island compute in."""

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_NUMPY: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.BOOL: np.bool_,
}
_ONNX = {np.dtype(dtype): data_type for data_type, dtype in _NUMPY.items()}


def numpy_dtype(data_type: int) -> np.dtype[Any]:
    """The numpy type of an ONNX element type; KeyError for one that no graph of ours has."""
    dtype: np.dtype[Any] = np.dtype(_NUMPY[data_type])
    return dtype


def onnx_type(dtype: np.dtype[Any]) -> int:
    """The inverse of `numpy_dtype`."""
    return _ONNX[np.dtype(dtype)]


def largest(data_type: int) -> float:
    """The largest finite value of a floating type."""
    return float(ml_dtypes.finfo(numpy_dtype(data_type)).max)  # type: ignore[no-untyped-call]


def rounded(array: NDArray[Any], data_type: int) -> NDArray[Any]:
    """To the nearest value of that type, ties to even; what is beyond its range becomes infinite, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(numpy_dtype(data_type), copy=False)
