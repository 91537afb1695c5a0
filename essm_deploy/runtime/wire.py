"""Arrays in JSON: {"dtype", "shape", "data"}, the bytes C-contiguous, little-endian and in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from math import prod

import numpy as np

from essm_deploy.errors import BundleError
from essm_deploy.runtime.manifest import DTYPES
from essm_deploy.runtime.strict import Fields, JsonObject
from essm_deploy.runtime.tensors import Array

_MOST_AXES = 8
_MOST_ARRAYS = 64


def encode_arrays(arrays: Mapping[str, Array]) -> JsonObject:
    """By name; BundleError for a dtype that no engine has."""
    return {name: _encode(name, np.asarray(array)) for name, array in arrays.items()}


def decode_arrays(value: object, where: str) -> dict[str, Array]:
    """Inverse of `encode_arrays`; the arrays may be written to. BundleError where dtype, shape and data do not agree."""
    entries = Fields({"arrays": value}, where).mapping("arrays") or {}
    if len(entries) > _MOST_ARRAYS:
        raise BundleError(f"{where} holds {len(entries)} arrays, expected at most {_MOST_ARRAYS}")
    return {name: _decode(entry, f"{where}: {name[:40]!r}") for name, entry in entries.items()}


def _encode(name: str, array: Array) -> JsonObject:
    if array.dtype.name not in DTYPES:
        raise BundleError(f"{name!r} is {array.dtype.name}, expected one of {', '.join(DTYPES)}")
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": base64.b64encode(little.tobytes()).decode("ascii")}


def _decode(entry: object, where: str) -> Array:
    fields = Fields(entry, where)
    dtype = np.dtype(fields.text("dtype", DTYPES)).newbyteorder("<")
    shape, data = _shape(fields), fields.take("data")
    fields.finish()
    if not isinstance(data, str):
        raise fields.wrong("data", data, "base64")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BundleError(f"{where}: 'data' is not base64") from None
    if len(content) != prod(shape) * dtype.itemsize:
        raise BundleError(f"{where}: {len(content)} bytes of data, expected those of {dtype.name} {shape}")
    if dtype.name == "bool" and content.strip(b"\0\1"):
        raise BundleError(f"{where}: a byte of a bool is neither 0 nor 1")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _shape(fields: Fields) -> list[int]:
    shape = fields.sequence("shape")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
            raise fields.wrong("shape", shape, "sizes")
    if len(shape) > _MOST_AXES:
        raise fields.wrong("shape", shape, f"at most {_MOST_AXES} sizes")
    return shape
