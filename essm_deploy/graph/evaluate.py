"""An evaluator of our own graphs in numpy, which rounds as the graph's types say. It judges what this machine cannot run.

ONNX Runtime's CPU provider has no bfloat16 kernels, and widens float16 graphs to float32. Here every result of a half type is
rounded once (ties to even), and nothing else is; sums inside a GEMM are float32. Values beyond float32's own rounding are
those of the graph, so an overflow is found at the node that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from essm_deploy.errors import BuildError
from essm_deploy.graph.dtypes import HALF, numpy_dtype, rounded
from essm_deploy.graph.operators import COMPUTE, MOVE

Array = NDArray[Any]
Watch = Callable[[onnx.NodeProto, Array, Array], None]
"""Called with a node, a result as it was computed, and as its type holds it."""

_HALF_DTYPES = {numpy_dtype(data_type): data_type for data_type in HALF}


class Evaluator:
    """One graph file with its external data. With `rounding` off, half values are kept in float32: the same weights, exact.

    BuildError for a node that our graphs do not have, and for data that are not there.
    """

    def __init__(self, path: Path, *, rounding: bool = True) -> None:
        self.graph = onnx.load(path, load_external_data=False).graph
        self.rounding = rounding
        self._stored = {tensor.name: _read(tensor, path) for tensor in self.graph.initializer}
        self._wide: dict[str, Array] = {}
        self._attributes = [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in self.graph.node]
        self._last = {name: i for i, node in enumerate(self.graph.node) for name in node.input}
        for node in self.graph.node:
            if node.op_type not in {*COMPUTE, *MOVE, "Cast"}:
                raise BuildError(f"{path.name}: node {node.name} is {node.op_type}, which the evaluator does not know")

    def run(self, inputs: Mapping[str, Array], watch: Watch | None = None) -> dict[str, Array]:
        """All outputs by name."""
        values: dict[str, Array] = dict(inputs)
        kept = {port.name for port in self.graph.output}
        for i, node in enumerate(self.graph.node):
            for name, result in zip(node.output, self._evaluate(i, node, values, watch), strict=False):
                values[name] = result
            for name in node.input:
                if self._last[name] == i and name not in kept:
                    values.pop(name, None)
        return {name: values[name] for name in kept}

    def _evaluate(self, i: int, node: onnx.NodeProto, values: Mapping[str, Array], watch: Watch | None) -> list[Array]:
        arrays = [values[name] if name in values else self._stored[name] for name in node.input if name]
        attributes = self._attributes[i]
        if node.op_type in MOVE:
            return MOVE[node.op_type](attributes, arrays)
        kind: int = attributes["to"] if node.op_type == "Cast" else _type_of(arrays)
        wide = [self._widened(name, array) for name, array in zip(filter(None, node.input), arrays, strict=True)]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the watch says where, a warning does not
            results = wide if node.op_type == "Cast" else COMPUTE[node.op_type](attributes, wide)
        if node.op_type == "Less":
            return results
        held = [self._held(result, kind) for result in results]
        if watch is not None:
            for result, value in zip(results, held, strict=True):
                watch(node, result, value)
        return held

    def _held(self, result: Array, data_type: int) -> Array:
        """A result in its type."""
        if data_type in HALF and not self.rounding:
            data_type = onnx.TensorProto.FLOAT
        return rounded(result, data_type)

    def _widened(self, name: str, array: Array) -> Array:
        """Half values in float32; those of weights are kept, since every call asks for them."""
        if array.dtype not in _HALF_DTYPES:
            return array
        if name not in self._stored:
            return array.astype(np.float32)
        if name not in self._wide:
            self._wide[name] = self._stored[name].astype(np.float32)
        return self._wide[name]


def _type_of(arrays: list[Array]) -> int:
    """Of the result: strongly typed operators have one floating type."""
    half = [_HALF_DTYPES[array.dtype] for array in arrays if array.dtype in _HALF_DTYPES]
    return half[0] if half else onnx.TensorProto.FLOAT


def _read(tensor: onnx.TensorProto, graph: Path) -> Array:
    dtype, shape = numpy_dtype(tensor.data_type), tuple(tensor.dims)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries["location"]
    try:
        if Path(location).name != location:
            raise ValueError("it is not beside the graph")
        array = np.memmap(graph.parent / location, np.uint8, "r", int(entries["offset"]), int(entries["length"]))
        return array.view(dtype).reshape(shape)
    except (OSError, ValueError, KeyError) as error:
        raise BuildError(f"{graph.name}: {tensor.name} cannot be read from {location} ({error})") from None
