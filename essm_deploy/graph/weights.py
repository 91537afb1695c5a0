"""Weights as external data: one file that the graphs of all budgets share.

Every tensor starts on a page, and every elastic tensor has the channel index k leading, so that the graph of a smaller budget
points at the same offset with a shorter length: a budget is a prefix of bytes. ONNX Runtime maps the file. A tensor is stored
once, in the type in which it is used, so that nothing but activations is ever cast.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray

from essm_deploy.errors import BuildError, PrecisionError
from essm_deploy.graph.dtypes import MAIN_TYPES, Precision, largest, numpy_dtype, onnx_type, rounded

PAGE = 4096
"""Alignment of every tensor in bytes: the unit in which the operating system maps a file."""


@dataclass(frozen=True)
class Region:
    """Where a tensor lies in a file: byte offset and length, and its ONNX element type."""

    location: str
    offset: int
    nbytes: int
    data_type: int

    def tensor(self, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
        """A TensorProto of the region's prefix with that shape. BuildError if the region is shorter."""
        nbytes = int(np.prod(shape)) * _itemsize(self.data_type)
        if nbytes > self.nbytes:
            raise BuildError(f"{name}: shape {list(shape)} needs {nbytes} bytes, {self.location} holds {self.nbytes}")
        proto = onnx.TensorProto(name=name, dims=shape, data_type=self.data_type)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", self.offset), ("length", nbytes)):
            proto.external_data.add(key=key, value=str(value))
        return proto


class DataFile:
    """An external data file that is being written: page-aligned tensors, one after the other."""

    def __init__(self, location: str, file: BinaryIO) -> None:
        self.location = location
        self._file = file

    def add(self, array: NDArray[Any]) -> Region:
        """Append an array (little-endian, C order) and say where it lies. Mapped arrays are streamed, not loaded."""
        offset = -(-self._file.tell() // PAGE) * PAGE
        self._file.seek(offset)
        contiguous = np.ascontiguousarray(array)
        self._file.write(contiguous.reshape(-1).view(np.uint8).data)
        return Region(self.location, offset, contiguous.nbytes, onnx_type(contiguous.dtype))


@contextmanager
def data_file(directory: Path, name: str) -> Iterator[DataFile]:
    """A new external data file `name` in `directory`, next to the graphs that will point into it."""
    with (directory / name).open("wb") as file:
        yield DataFile(name, file)


def write_weights(
    directory: Path,
    name: str,
    tensors: Mapping[str, NDArray[Any]],
    precision: Precision = "fp32",
    main: Container[str] = (),
) -> dict[str, Region]:
    """Write tensors to one file; returns where each lies. Those of `main` are stored in that precision, after the others.

    PrecisionError names a tensor that the precision cannot hold.
    """
    data_type = MAIN_TYPES[precision]
    narrow = [key for key in tensors if key in main and data_type != onnx_type(tensors[key].dtype)]
    kept = [key for key in tensors if key not in narrow]
    with data_file(directory, name) as file:
        regions = {key: file.add(tensors[key]) for key in kept}
        return regions | {key: file.add(_narrowed(key, tensors[key], data_type)) for key in narrow}


def _narrowed(name: str, array: NDArray[Any], data_type: int) -> NDArray[Any]:
    result = rounded(array, data_type)
    if not np.isfinite(result).all():
        kind, limit = onnx.TensorProto.DataType.Name(data_type), largest(data_type)
        raise PrecisionError(
            f"the weight {name} reaches {float(np.abs(array).max()):.3g}, and {kind} ends at {limit:.3g}; "
            "choose another --precision, or allow one with --precision-fallback"
        )
    return result


def _itemsize(data_type: int) -> int:
    return int(numpy_dtype(data_type).itemsize)
