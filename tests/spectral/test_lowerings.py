"""A lowering, alone in a graph, computes the gated causal convolution; its cost is what its graph does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from essm_deploy.errors import BuildError
from essm_deploy.graph.builder import Dim, GraphBuilder, save_model
from essm_deploy.graph.weights import data_file
from essm_deploy.spectral.allpass import cascade, impulse_states
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.chunked import Chunked
from essm_deploy.spectral.lowerings.chunked_graph import Past
from essm_deploy.spectral.lowerings.dft import Dft, transform_length
from essm_deploy.spectral.lowerings.monarch import Monarch
from essm_deploy.spectral.lowerings.toeplitz import Toeplitz
from essm_deploy.spectral.realization import Realization
from tests.checkpoints import random_bank

FLOAT = TensorProto.FLOAT
CLOSE = 3e-6
"""float32 sums of some dozens of products of numbers of order 1."""


def smooth_system(channels: int, length: int, states: int = 6) -> Realization:
    """A system with known poles, real and complex, whose own impulse responses over `length` tokens are the filters."""
    angles = np.linspace(0, 1.0, states // 2)[1:]
    pairs = [(0.8 + 0.02 * i) * np.exp(s * 1j * a) for i, a in enumerate(angles) for s in (1, -1)]
    A, B = cascade(np.array([0.7, 0.95, *pairs], np.complex128))
    C = np.random.default_rng(5).standard_normal((channels, len(B)))
    return Realization(A, B, C, length, np.zeros(channels), 0.97)


def filters_of(system: Realization) -> NDArray[np.float64]:
    return system.C @ impulse_states(system.A, system.B, system.length)


def compiled(lowering: Lowering, problem: ConvProblem, folder: Path) -> tuple[onnx.ModelProto, onnxruntime.InferenceSession]:
    with data_file(folder, "c.bin") as file:
        builder = GraphBuilder("conv", {}, file)
        u = builder.input("u", FLOAT, [problem.batch, problem.length, problem.width])
        gates = builder.input("gates", FLOAT, ["tokens", problem.channels])
        with builder.scope("spectral"):
            gated = lowering.emit(builder, problem, u, gates)
        builder.output("y", gated, FLOAT, ["tokens", problem.channels * problem.width])
        model = builder.model()
    return save_model(model, folder / "c.onnx"), session(folder)


def session(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(folder / "c.onnx", providers=["CPUExecutionProvider"])


def direct(filters: NDArray[Any], u: NDArray[Any]) -> NDArray[np.float64]:
    """The definition, by np.convolve: u [B, T, d] -> [B, T, K, d]. Every filter keeps its length, however long u is."""
    batch, tokens, width = u.shape
    out = np.zeros((batch, tokens, len(filters), width))
    for b, k, j in np.ndindex(batch, len(filters), width):
        out[b, :, k, j] = np.convolve(filters[k], u[b, :, j])[:tokens]
    return out


def inputs(batch: int, tokens: int, width: int, channels: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((batch, tokens, width)).astype("f4")
    return {"u": u, "gates": rng.random((batch * tokens, channels)).astype("f4")}


def check(problem: ConvProblem, runner: onnxruntime.InferenceSession, batch: int) -> None:
    feed = inputs(batch, problem.length, problem.width, problem.channels)
    (y,) = runner.run(None, feed)
    expected = direct(problem.filters, feed["u"]) * feed["gates"].reshape(batch, problem.length, problem.channels, 1)
    np.testing.assert_allclose(y.reshape(expected.shape), expected, atol=CLOSE)


TOEPLITZ = [
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
@pytest.mark.parametrize(("block", "length", "taps", "batch"), TOEPLITZ)
def test_toeplitz_is_the_convolution(tmp_path: Path, block: int, length: int, taps: int, batch: int, channels: int) -> None:
    problem = ConvProblem(random_bank(channels, taps), length, 6, batch)
    check(problem, compiled(Toeplitz(block), problem, tmp_path)[1], batch)


CHUNKED = [
    # chunk, block, engine length, batch: with one block a chunk and several, with and without a torn last chunk
    (8, 8, 40, 1),
    (8, 4, 40, 1),
    (12, 3, 40, 1),
    (8, 2, 37, 1),
    (16, 4, 40, 3),
    (7, 7, 40, 2),
]


@pytest.mark.parametrize("width", [5, 40])  # narrower and wider than the block matrix: gates go to either side
@pytest.mark.parametrize(("chunk", "block", "length", "batch"), CHUNKED)
def test_chunked_is_the_convolution(tmp_path: Path, chunk: int, block: int, length: int, batch: int, width: int) -> None:
    system = smooth_system(3, 48)
    problem = ConvProblem(filters_of(system), length, width, batch)
    check(problem, compiled(Chunked(system, chunk, block), problem, tmp_path)[1], batch)


TRANSFORMS = [
    # lowering, engine length, filter length, batch, width: lengths and blocks that are powers of two and others, odd widths
    (Monarch(4), 32, 32, 1, 6),
    (Monarch(4), 24, 24, 3, 6),
    (Monarch(8), 37, 40, 1, 5),
    (Monarch(5), 23, 23, 2, 3),
    (Monarch(1), 13, 13, 1, 4),  # no second stage: one frequency is one number
    (Monarch(32), 24, 24, 1, 6),  # no first stage: one block
    (Monarch(16), 300, 300, 1, 2),
    (Dft(), 32, 32, 1, 6),
    (Dft(), 24, 24, 3, 6),
    (Dft(), 37, 40, 1, 5),
    (Dft(), 23, 23, 2, 1),
    (Dft(), 300, 300, 1, 2),
    (Monarch(2), 1, 4, 1, 3),
    (Dft(), 1, 4, 1, 3),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("lowering", "length", "taps", "batch", "width"), TRANSFORMS)
def test_transforms_are_the_convolution(
    tmp_path: Path, lowering: Lowering, length: int, taps: int, batch: int, width: int, channels: int
) -> None:
    """A float32 transform rounds relative to the norm of its values, once a stage: well within CLOSE at these lengths."""
    problem = ConvProblem(random_bank(channels, taps), length, width, batch)
    check(problem, compiled(lowering, problem, tmp_path)[1], batch)


@pytest.mark.parametrize("lowering", [Monarch(8), Dft()])
def test_what_follows_reaches_back_by_rounding_alone(tmp_path: Path, lowering: Lowering) -> None:
    """The circular convolution is long enough: its end does not come around to its beginning."""
    problem = ConvProblem(np.ones((1, 40)), 40, 2)
    runner = compiled(lowering, problem, tmp_path)[1]
    u = np.zeros((1, 40, 2), "f4")
    u[:, 39] = 1000.0
    (y,) = runner.run(None, {"u": u, "gates": np.ones((40, 1), "f4")})
    np.testing.assert_allclose(y[39], 1000.0, rtol=CLOSE)
    np.testing.assert_allclose(y[:39], 0.0, atol=1000 * CLOSE)


PLAIN = {"Pad", "Reshape", "MatMul", "Slice", "Mul", "Identity"}


@pytest.mark.parametrize("length", [24, 30])
def test_monarch_is_real_matrix_products_and_no_transposition(tmp_path: Path, length: int) -> None:
    problem = ConvProblem(random_bank(3, length), length, 6)
    model, _ = compiled(Monarch(4), problem, tmp_path)
    assert {node.op_type for node in model.graph.node} <= PLAIN
    assert sum(node.op_type == "MatMul" for node in model.graph.node) == 3


@pytest.mark.parametrize(("length", "n"), [(1, 1), (2, 4), (3, 8), (32, 64), (33, 128), (300, 1024), (2048, 4096)])
def test_transforms_are_powers_of_two_that_hold_the_linear_convolution(length: int, n: int) -> None:
    assert transform_length(length) == n


def test_monarch_does_a_small_part_of_the_work_of_long_toeplitz_products() -> None:
    """N = 32, P' = 64: 8 N + 4 P' = 512 operations a token, column and channel, where Toeplitz takes 4 / 3 of 2048."""
    problem = ConvProblem(random_bank(32, 2048), 2048, 16)
    assert Monarch(32).cost(problem).flops == pytest.approx(512 * 2048 * 16 * 32, rel=0.02)
    assert Monarch(32).cost(problem).flops < Toeplitz(128).cost(problem).flops / 5


@pytest.mark.parametrize("kind", ["toeplitz", "chunked", "monarch", "dft"])
def test_a_free_batch_takes_any_number(tmp_path: Path, kind: str) -> None:
    batch: Dim = "batch"
    system = smooth_system(2, 16)
    problem = ConvProblem(filters_of(system), 15, 6, batch)
    kinds: dict[str, Lowering] = {
        "toeplitz": Toeplitz(4),
        "chunked": Chunked(system, 8, 4),
        "monarch": Monarch(4),
        "dft": Dft(),
    }
    runner = compiled(kinds[kind], problem, tmp_path)[1]
    for count in (1, 5):
        check(problem, runner, count)


def test_fewer_channels_read_the_same_state(tmp_path: Path) -> None:
    system = smooth_system(5, 48)
    problem = ConvProblem(filters_of(system)[:2], 40, 6)
    check(problem, compiled(Chunked(system, 8, 4), problem, tmp_path)[1], 1)


def streaming(system: Realization, tokens: int, chunk: int, block: int, leaving: bool, batch: int, folder: Path) -> Any:
    """An engine of `tokens` a call over the system's filters."""
    r, width = system.states, 4
    problem = ConvProblem(filters_of(system), tokens, width, batch)
    with data_file(folder, "c.bin") as file:
        b = GraphBuilder("conv", {}, file)
        u = b.input("u", FLOAT, [batch, tokens, width])
        gates = b.input("gates", FLOAT, [batch * tokens, problem.channels])
        past = Past(b.input("state", FLOAT, [batch, 1, r, width]))
        if leaving:
            past = Past(past.state, b.input("leaving", FLOAT, [batch, tokens, width]))
        gated, after = Chunked(system, chunk, block).emit_from(b, problem, u, gates, past)
        b.output("y", gated, FLOAT, [batch * tokens, problem.channels * width])
        b.output("next_state", after, FLOAT, [batch, 1, r, width])
        model = b.model()
    save_model(model, folder / "c.onnx")
    return session(folder)


STREAMS = [(1, 1, 1), (4, 4, 4), (4, 4, 2), (12, 4, 4), (12, 4, 1), (12, 12, 3)]
"""Tokens a call, chunk, block."""


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("tokens", "chunk", "block"), STREAMS)
def test_a_stream_within_the_filters_length_is_the_convolution(
    tmp_path: Path, tokens: int, chunk: int, block: int, batch: int
) -> None:
    run_stream(tmp_path, tokens, chunk, block, batch, total=24, leaving=False)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("tokens", "chunk", "block"), STREAMS)
def test_a_stream_with_a_ring_is_the_convolution_far_past_the_filters_length(
    tmp_path: Path, tokens: int, chunk: int, block: int, batch: int
) -> None:
    run_stream(tmp_path, tokens, chunk, block, batch, total=8 * 24, leaving=True)


def run_stream(folder: Path, tokens: int, chunk: int, block: int, batch: int, total: int, leaving: bool) -> None:
    system = smooth_system(3, 24)
    runner = streaming(system, tokens, chunk, block, leaving, batch, folder)
    feed = inputs(batch, total, 4, 3)
    gates = feed["gates"].reshape(batch, total, 3, 1)
    older = np.concatenate([np.zeros((batch, 24, 4), "f4"), feed["u"]], axis=1)
    state, parts = np.zeros((batch, 1, system.states, 4), "f4"), []
    for start in range(0, total, tokens):
        now = slice(start, start + tokens)
        call = {"u": feed["u"][:, now], "gates": gates[:, now].reshape(-1, 3), "state": state}
        if leaving:
            call["leaving"] = older[:, now]
        y, state = runner.run(None, call)
        parts.append(y.reshape(batch, tokens, 3, 4))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), direct(filters_of(system), feed["u"]) * gates, atol=4 * CLOSE)


def test_what_cannot_be_expressed_is_refused() -> None:
    system = smooth_system(2, 48)
    problem = ConvProblem(filters_of(system), 40, 6)
    assert "exceed" in str(Toeplitz(8).refusal(ConvProblem(random_bank(2, 16), 17, 6)))
    assert Toeplitz(8).refusal(ConvProblem(random_bank(2, 16), 16, 6)) is None
    assert Chunked(system, 8, 4).refusal(problem) is None
    for lowering in (Monarch(8), Dft()):
        assert "exceed" in str(lowering.refusal(ConvProblem(random_bank(2, 16), 17, 6)))
        assert lowering.refusal(problem) is None
        assert not lowering.residual(problem).any()
    assert "not a multiple" in str(Chunked(system, 8, 3).refusal(problem))
    assert "not more than a chunk" in str(Chunked(system, 40, 4).refusal(problem))
    assert "reads 2 channels" in str(Chunked(system, 8, 4).refusal(ConvProblem(random_bank(3, 48), 40, 6)))


def test_a_torn_chunk_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be cut"):
        streaming(smooth_system(3, 24), 6, 4, 4, False, 1, tmp_path)


def shapes_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    infos = [*model.graph.value_info, *model.graph.input]
    found = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in infos}
    return found | {t.name: list(t.dims) for t in model.graph.initializer}


GEMMS = [Toeplitz(6), Toeplitz(12), Toeplitz(24), Monarch(4), Monarch(7), "chunked 8/8", "chunked 12/4"]


@pytest.mark.parametrize("lowering", GEMMS)
def test_the_cost_counts_the_operations_of_the_graph(tmp_path: Path, lowering: Lowering | str) -> None:
    system = smooth_system(3, 24)
    if isinstance(lowering, str):
        lowering = Chunked(system, *map(int, lowering.split()[1].split("/")))
    problem = ConvProblem(filters_of(system), 24, 40)
    model, _ = compiled(lowering, problem, tmp_path)
    shapes, flops = shapes_of(model), 0
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            left, right = shapes[node.input[0]], shapes[node.input[1]]
            pieces = max(int(np.prod(left[:-2])), int(np.prod(right[:-2])))
            flops += 2 * pieces * left[-2] * left[-1] * right[-1]
    # The state before the first chunk is nothing: a scan has one step less than chunks, and the estimate does not know it.
    slack = 2 * system.states**2 * problem.width if isinstance(lowering, Chunked) else 0
    assert lowering.cost(problem).flops == pytest.approx(flops, abs=slack)


def test_toeplitz_blocks_do_at_most_four_thirds_of_the_exact_work() -> None:
    problem = ConvProblem(random_bank(1, 2048), 2048, 1)
    exact = 2 * sum(t + 1 for t in range(2048))
    assert Toeplitz(32).cost(problem).flops < 4 / 3 * 1.05 * exact
