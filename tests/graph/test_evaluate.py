"""The evaluator rounds where the graph's types say, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from essm_deploy.errors import BuildError
from essm_deploy.graph.builder import GraphBuilder, save_model
from essm_deploy.graph.dtypes import Precision
from essm_deploy.graph.evaluate import Evaluator
from essm_deploy.graph.weights import data_file, write_weights

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 64)).astype("f4")
W = RNG.standard_normal((3, 64)).astype("f4")
BIAS = RNG.standard_normal(3).astype("f4")


def graph(folder: Path, emit: Callable[[GraphBuilder, str], str], precision: Precision, rows: int = 5) -> Path:
    """x [5, 64] -> y [5, ...], with W and BIAS in the main precision."""
    weights = write_weights(folder, "w.bin", {"w": W, "b": BIAS}, precision, {"w", "b"})
    with data_file(folder, "c.bin") as file:
        b = GraphBuilder("g", weights, file, precision)
        x = b.input("x", TensorProto.FLOAT, [5, 64])
        b.output("y", emit(b, x), TensorProto.FLOAT, [rows, 3])
        save_model(b.model(), folder / "g.onnx")
    return folder / "g.onnx"


def gemm(b: GraphBuilder, x: str) -> str:
    return b.to_float(b.op("Gemm", b.to_main(x), b.weight("w", (3, 64)), b.weight("b", (3,)), transB=1))


def run(path: Path, **options: Any) -> NDArray[Any]:
    return Evaluator(path, **options).run({"x": X})["y"]


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "f4"), ("fp16", "f2"), ("bf16", ml_dtypes.bfloat16)])
def test_a_gemm_sums_in_float32_and_rounds_once(tmp_path: Path, precision: Precision, dtype: Any) -> None:
    x, w, bias = (array.astype(dtype).astype("f4") for array in (X, W, BIAS))
    expected = (x @ w.T + bias).astype(dtype).astype("f4")
    np.testing.assert_array_equal(run(graph(tmp_path, gemm, precision)), expected)


def test_without_rounding_only_the_weights_are_rounded(tmp_path: Path) -> None:
    expected = X @ W.astype("f2").astype("f4").T + BIAS.astype("f2").astype("f4")
    np.testing.assert_allclose(run(graph(tmp_path, gemm, "fp16"), rounding=False), expected, rtol=1e-6, atol=1e-6)


def test_every_result_is_rounded(tmp_path: Path) -> None:
    """Two operators in a row round twice; a fused kernel would round once, which is why ONNX Runtime is no judge of bf16."""

    def twice(b: GraphBuilder, x: str) -> str:
        product = b.op("Gemm", b.to_main(x), b.weight("w", (3, 64)), transB=1)
        return b.to_float(b.op("Mul", b.op("Sigmoid", product), b.weight("b", (3,))))

    half = ml_dtypes.bfloat16
    product = (X.astype(half).astype("f4") @ W.astype(half).astype("f4").T).astype(half).astype("f4")
    sigmoid = (1 / (1 + np.exp(-product))).astype(half).astype("f4")
    expected = (sigmoid * BIAS.astype(half).astype("f4")).astype(half).astype("f4")
    np.testing.assert_array_equal(run(graph(tmp_path, twice, "bf16")), expected)


def test_the_watch_sees_a_value_before_and_after_rounding(tmp_path: Path) -> None:
    seen: dict[str, tuple[Any, Any]] = {}
    Evaluator(graph(tmp_path, gemm, "fp16")).run(
        {"x": X}, lambda node, computed, held: seen.update({node.name: (computed, held)})
    )
    computed, held = seen["Gemm"]
    assert (computed.dtype, held.dtype) == (np.dtype("f4"), np.dtype("f2"))
    np.testing.assert_array_equal(computed.astype("f2"), held)


def test_an_operator_that_our_graphs_do_not_have_is_named(tmp_path: Path) -> None:
    path = graph(tmp_path, lambda b, x: b.op("Tanh", gemm(b, x)), "fp32")
    with pytest.raises(BuildError, match="node Tanh is Tanh, which the evaluator does not know"):
        Evaluator(path)


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "gone.bin"])
def test_data_that_are_not_beside_the_graph_are_refused(tmp_path: Path, location: str) -> None:
    path = graph(tmp_path, gemm, "fp16")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match="cannot be read from"):
        Evaluator(path)


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path, gemm, "fp16")
    (tmp_path / "w.bin").write_bytes(b"\0" * 100)
    with pytest.raises(BuildError, match=r"g\.onnx: w cannot be read from w\.bin"):
        Evaluator(path)
