"""A lowering, alone in a graph, computes the causal convolution; its cost is what its graph does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from essm_deploy.graph.builder import Dim, GraphBuilder, save_model
from essm_deploy.graph.weights import data_file
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.toeplitz import Toeplitz
from tests.checkpoints import random_bank

WIDTH = 6


def compiled(lowering: Lowering, problem: ConvProblem, folder: Path) -> tuple[onnx.ModelProto, onnxruntime.InferenceSession]:
    with data_file(folder, "c.bin") as file:
        builder = GraphBuilder("conv", {}, file)
        u = builder.input("u", TensorProto.FLOAT, [problem.batch, problem.length, problem.width])
        rows = problem.length * problem.channels
        with builder.scope("spectral"):
            features = lowering.emit(builder, problem, u)
        builder.output("y", features, TensorProto.FLOAT, [problem.batch, rows, problem.width])
        model = builder.model()
    return save_model(model, folder / "c.onnx"), onnxruntime.InferenceSession(
        folder / "c.onnx", providers=["CPUExecutionProvider"]
    )


def direct(filters: NDArray[Any], u: NDArray[Any]) -> NDArray[np.float64]:
    """The definition, by np.convolve: u [B, T, d] -> [B, T, K, d]."""
    batch, tokens, width = u.shape
    out = np.zeros((batch, tokens, len(filters), width))
    for b, k, j in np.ndindex(batch, len(filters), width):
        out[b, :, k, j] = np.convolve(filters[k], u[b, :, j])[:tokens]
    return out


CASES = [
    # block, engine length, filter length, batch: blocks that divide the length and blocks that do not
    (24, 24, 24, 1),
    (12, 24, 24, 1),
    (6, 24, 24, 1),
    (5, 24, 24, 1),
    (7, 24, 30, 3),
    (4, 13, 24, 2),
    (32, 24, 24, 1),
    (1, 9, 9, 1),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("block", "length", "taps", "batch"), CASES)
def test_toeplitz_is_the_convolution(tmp_path: Path, block: int, length: int, taps: int, batch: int, channels: int) -> None:
    problem = ConvProblem(random_bank(channels, taps), length, WIDTH, batch)
    _, session = compiled(Toeplitz(block), problem, tmp_path)
    u = np.random.default_rng(1).standard_normal((batch, length, WIDTH)).astype("f4")
    (y,) = session.run(None, {"u": u})
    # float32 sums of at most 30 products: a few units in the last place.
    np.testing.assert_allclose(y.reshape(batch, length, channels, WIDTH), direct(problem.filters, u), atol=2e-6)


def test_a_free_batch_takes_any_number(tmp_path: Path) -> None:
    batch: Dim = "batch"
    problem = ConvProblem(random_bank(2, 16), 16, WIDTH, batch)
    _, session = compiled(Toeplitz(4), problem, tmp_path)
    for count in (1, 5):
        u = np.random.default_rng(count).standard_normal((count, 16, WIDTH)).astype("f4")
        (y,) = session.run(None, {"u": u})
        np.testing.assert_allclose(y.reshape(count, 16, 2, WIDTH), direct(problem.filters, u), atol=2e-6)


def test_more_tokens_than_taps_are_refused() -> None:
    assert "exceed" in str(Toeplitz(8).refusal(ConvProblem(random_bank(2, 16), 17, WIDTH)))
    assert Toeplitz(8).refusal(ConvProblem(random_bank(2, 16), 16, WIDTH)) is None


@pytest.mark.parametrize("block", [6, 12, 24])
def test_the_cost_counts_the_operations_of_the_graph(tmp_path: Path, block: int) -> None:
    problem = ConvProblem(random_bank(3, 24), 24, WIDTH)
    model, _ = compiled(Toeplitz(block), problem, tmp_path)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in [*model.graph.value_info, *model.graph.input]
    }
    shapes |= {t.name: list(t.dims) for t in model.graph.initializer}
    flops = 0
    for node in model.graph.node:
        if node.op_type == "MatMul":
            rows, inner = shapes[node.input[0]]
            flops += 2 * rows * inner * int(np.prod(shapes[node.input[1]])) // inner
    assert Toeplitz(block).cost(problem).flops == flops


def test_blocks_do_at_most_four_thirds_of_the_exact_work() -> None:
    problem = ConvProblem(random_bank(1, 2048), 2048, 1)
    exact = 2 * sum(t + 1 for t in range(2048))
    assert Toeplitz(32).cost(problem).flops < 4 / 3 * 1.05 * exact
