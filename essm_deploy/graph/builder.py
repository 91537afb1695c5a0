"""A small ONNX graph builder: operators in call order, names by scope, tensors outside the protobuf."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from essm_deploy.errors import BuildError
from essm_deploy.graph.dtypes import MAIN_TYPES, Precision
from essm_deploy.graph.weights import DataFile, Region

OPSET = 20
"""Gelu and LayerNormalization as operators; read by ONNX Runtime since 1.17 and by TensorRT 10 and 11."""
IR_VERSION = 10

_INLINE_BYTES = 1024

Dim = int | str


class GraphBuilder:
    """Collects nodes and returns value names. Values are strings: ONNX's own currency.

    `weights` are regions of the file that all budgets share; `constants` receives what this graph alone needs. `precision` is
    that of the GEMMs outside the spectral island.
    """

    def __init__(self, name: str, weights: Mapping[str, Region], constants: DataFile, precision: Precision = "fp32") -> None:
        self._name = name
        self._main = MAIN_TYPES[precision]
        self._weights = weights
        self._constants = constants
        self._scopes: list[str] = []
        self._counts: dict[str, int] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside are prefixed with `name/`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, data_type: int, shape: Sequence[Dim]) -> str:
        """Declare a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, data_type, list(shape)))
        return name

    def output(self, name: str, value: str, data_type: int, shape: Sequence[Dim]) -> None:
        """Declare `value` as a graph output under a stable name."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, data_type, list(shape)))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """The checkpoint's tensor `name` (a prefix of it, reshaped to `shape`), shared between budgets."""
        if name not in self._weights:
            raise BuildError(f"{self._name}: the weights hold no tensor named {name!r}")
        return self._initializer(self._weights[name].tensor(name, shape))

    def constant(self, array: NDArray[Any], hint: str) -> str:
        """A tensor of this graph alone: small ones inside the protobuf, large ones in the constants file.

        Equal tensors are stored once: all layers share the filter bank, and so what is made of it.
        """
        content = (array.shape, str(array.dtype), hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest())
        if content in self._known:
            return self._known[content]
        name = self._known[content] = self._unique(hint)
        if array.nbytes <= _INLINE_BYTES:
            return self._initializer(onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return self._initializer(self._constants.add(array).tensor(name, array.shape))

    def ints(self, *values: int) -> str:
        """An int64 vector, as shapes and slice bounds want it. Equal vectors are one initializer."""
        name = "ints/" + "_".join(str(v) for v in values)
        return self._initializer(onnx.numpy_helper.from_array(np.array(values, np.int64), name))

    def to_main(self, value: str) -> str:
        """A float32 value in the main precision: itself, or a Cast."""
        return value if self._main == TensorProto.FLOAT else self.op("Cast", value, to=self._main)

    def to_float(self, value: str) -> str:
        """A value of the main precision in float32: itself, or a Cast."""
        return value if self._main == TensorProto.FLOAT else self.op("Cast", value, to=TensorProto.FLOAT)

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Append a node and return its (first) output."""
        return self.ops(op_type, *inputs, outputs=outputs, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Append a node with several outputs."""
        name = self._unique(op_type)
        results = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results

    def model(self) -> onnx.ModelProto:
        """The finished model, not yet checked."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="essm-deploy")
        model.ir_version = IR_VERSION
        return model

    def _initializer(self, tensor: TensorProto) -> str:
        known = self._initializers.setdefault(tensor.name, tensor)
        if list(known.dims) != list(tensor.dims):
            raise BuildError(f"{self._name}: {tensor.name} is used as {list(known.dims)} and as {list(tensor.dims)}")
        return str(tensor.name)

    def _unique(self, hint: str) -> str:
        base = "/".join([*self._scopes, hint])
        count = self._counts.get(base, 0)
        self._counts[base] = count + 1
        return base if count == 0 else f"{base}_{count}"


def save_model(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Write the graph next to its data, run onnx.checker with strict shape inference, return the model with types.

    BuildError names the graph if the checker refuses it.
    """
    onnx.save_model(model, path)
    try:
        onnx.checker.check_model(path, full_check=True)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise BuildError(f"{path.name}: the ONNX checker refuses the graph ({str(error).splitlines()[0]})") from error
