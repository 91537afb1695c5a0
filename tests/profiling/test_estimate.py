"""The roofline: what is counted, what bounds a node, and what the estimate is worth for ordering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from essm_deploy.backends.base import GraphsOnly
from essm_deploy.backends.emit import prepare
from essm_deploy.errors import BuildError, UnavailableError
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.estimate import GPU, Efficiency, EstimatedPlanner, Rates, estimate_graph, estimate_work
from essm_deploy.profiling.estimated import choose_by_estimate, with_neighbours
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.verdict import Limits
from essm_deploy.profiling.work import graph_work
from essm_deploy.spectral.lowerings.base import ConvProblem
from essm_deploy.targets.description import find_target

RATES = Rates(fp32_flops_per_s=1e12, bandwidth_bytes_per_s=1e11, fp16_flops_per_s=8e12)
EXACT = Efficiency(compute=1.0, memory=1.0, launch_us=0.0, call_us=0.0, source="as given")


def gemm(path: Path, m: int, n: int, k: int, kind: int = TensorProto.FLOAT, batch: Any = 1) -> Path:
    ports = [helper.make_tensor_value_info("x", kind, [batch, m, k]), helper.make_tensor_value_info("y", kind, [batch, m, n])]
    weight = onnx.numpy_helper.from_array(np.zeros((k, n), helper.tensor_dtype_to_np_dtype(kind)), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="MatMul")
    graph = helper.make_graph([node], "gemm", [ports[0]], [ports[1]], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def test_a_product_counts_two_operations_a_multiply_add_and_every_matrix_once(tmp_path: Path) -> None:
    work = graph_work(gemm(tmp_path / "g.onnx", 10, 20, 30))
    assert work.flops == 2 * 10 * 20 * 30
    assert work.bytes == 4 * (10 * 30 + 30 * 20 + 10 * 20)
    assert work.weight_bytes == 4 * 30 * 20
    assert work.live_bytes >= 4 * (10 * 30 + 10 * 20)


def test_a_free_batch_is_counted_at_the_batch_that_is_asked_for(tmp_path: Path) -> None:
    path = gemm(tmp_path / "g.onnx", 10, 20, 30, batch="batch")
    assert graph_work(path, 4).flops == 4 * graph_work(path).flops


def test_large_products_are_bound_by_arithmetic_and_thin_ones_by_memory(tmp_path: Path) -> None:
    large = estimate_graph(gemm(tmp_path / "a.onnx", 1000, 1000, 1000), RATES, EXACT)
    assert large.latency_ms == pytest.approx(2.0)  # 2e9 operations at 1e12 a second
    assert large.bound["memory_ms"] == 0
    thin = estimate_graph(gemm(tmp_path / "b.onnx", 1, 1000, 1000), RATES, EXACT)
    assert thin.latency_ms == pytest.approx(4.008e6 / 1e11 * 1e3)
    assert thin.bound["compute_ms"] == 0


def test_half_precision_products_run_at_the_rate_of_tensor_cores_where_it_is_published(tmp_path: Path) -> None:
    path = gemm(tmp_path / "g.onnx", 2000, 2000, 2000, TensorProto.FLOAT16)
    fast = estimate_graph(path, RATES, EXACT)
    slow = estimate_graph(path, Rates(1e12, 1e11), EXACT)
    assert slow.latency_ms == pytest.approx(8 * fast.latency_ms)


def test_efficiency_and_overhead_are_what_they_say(tmp_path: Path) -> None:
    work = graph_work(gemm(tmp_path / "g.onnx", 1000, 1000, 1000))
    estimate = estimate_work(work, RATES, Efficiency(0.5, 1.0, 7.0, 30.0, "as given"))
    assert estimate.latency_ms == pytest.approx(4.0 + 0.007 + 0.030)
    assert estimate.basis == "estimated"


def test_pointwise_operators_cost_a_fused_kernel_nothing_but_arithmetic(tmp_path: Path) -> None:
    path = gemm(tmp_path / "g.onnx", 10, 20, 30)
    model = onnx.load(path)
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(helper.make_node("Gelu", ["product"], ["gelu"], name="Gelu"))
    model.graph.node.append(helper.make_node("Add", ["gelu", "gelu"], ["y"], name="Add"))
    onnx.save(model, path)
    apart, fused = graph_work(path), graph_work(path, fused=True)
    assert (len(apart.nodes), len(fused.nodes)) == (3, 2)  # what the Add reads twice has to be written
    assert fused.flops == apart.flops
    assert fused.bytes == apart.bytes - 2 * 4 * 10 * 20


def test_half_precision_is_not_charged_for_its_casts(keywords: Path, tmp_path: Path) -> None:
    launches = {}
    for precision in ("fp32", "fp16"):
        folder = tmp_path / precision
        folder.mkdir()
        made = prepare(folder, open_checkpoint(keywords), [8], 1, GraphsOnly("any"), precision=precision)  # type: ignore[arg-type]
        launches[precision] = len(graph_work(folder / made.sequence(8).files[0], fused=True).nodes)
    assert launches["fp16"] <= 1.2 * launches["fp32"]


def test_a_graph_whose_shapes_are_unknown_is_not_guessed_at(tmp_path: Path) -> None:
    path = gemm(tmp_path / "g.onnx", 4, 4, 4)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    onnx.save(model, path)
    with pytest.raises(BuildError, match="shape of x is unknown"):
        graph_work(path)


@pytest.mark.parametrize("target", ["rtx3090", "rtx5090", "t4", "jetson-orin-nano", "h100"])
@pytest.mark.parametrize("kind", ["sequence", "stream"])
def test_a_larger_budget_never_costs_less(keywords: Path, tmp_path: Path, target: str, kind: str) -> None:
    rates = Rates.of(find_target(target))
    planner, folder = EstimatedPlanner(rates, GPU), tmp_path / "engines"
    made = prepare(folder, open_checkpoint(keywords), [2, 4, 8], 1, GraphsOnly("any"), planner)
    engines = [made.sequence(k) if kind == "sequence" else made.stream(k, 1) for k in (2, 4, 8)]
    times = [estimate_graph(folder / engine.files[0], rates, GPU).latency_ms for engine in engines]
    assert times == sorted(times)
    assert times[0] > 0


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()


def test_the_planner_measures_nothing_and_knows_the_device() -> None:
    problem = ConvProblem(np.random.default_rng(0).standard_normal((8, 128)), 128, 64)
    planner = EstimatedPlanner(Rates.of(find_target("rtx3090")), GPU)
    chosen = planner(problem)
    assert planner.records == {}
    assert planner.milliseconds(chosen, problem) > 0
    assert EstimatedPlanner(planner.rates, GPU, "monarch")(problem).label.startswith("monarch")


def test_a_target_without_figures_cannot_be_estimated() -> None:
    with pytest.raises(UnavailableError, match="states no"):
        Rates.of(find_target("cpu"))


def test_the_choice_is_the_largest_within_the_limits_and_carries_no_percentile(tmp_path: Path) -> None:
    sizes = {2: 500, 4: 1000, 8: 2000}
    estimates = {k: estimate_graph(gemm(tmp_path / f"{k}.onnx", n, 1000, 1000), RATES, EXACT) for k, n in sizes.items()}
    candidates = [Candidate(k) for k in sizes]
    choice = choose_by_estimate(candidates, Limits(max_latency_ms=2.5), dict(estimates))
    assert (choice.status, choice.chosen) == ("ok", 4)
    assert choose_by_estimate(candidates, Limits(max_latency_ms=0.5), dict(estimates)).status == "nothing_fits"
    assert choose_by_estimate(candidates, Limits(max_memory_bytes=9 * 10**6), dict(estimates)).chosen == 2
    assert all(m.latency.basis == "estimated" and m.latency.samples == 0 for m in choice.measurements.values())


@pytest.mark.parametrize(("chosen", "kept"), [(2, [2, 4]), (4, [2, 4, 8]), (8, [4, 8])])
def test_neighbours_come_along_where_they_exist(chosen: int, kept: list[int]) -> None:
    assert [c.budget for c in with_neighbours([Candidate(k) for k in (2, 4, 8)], chosen)] == kept
