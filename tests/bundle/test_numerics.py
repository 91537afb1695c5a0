"""Half precision is within its bounds in every lowering and kind of engine, and where it is not, the node is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.bundle import vectors
from essm_deploy.bundle.judges import evaluated, graph_error
from essm_deploy.bundle.numerics import check_built, check_numerics
from essm_deploy.bundle.vectors import bound_of, engine_error
from essm_deploy.bundle.verify import check_engine
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import IntegrityError, PrecisionError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.graph.builder import Dim
from essm_deploy.graph.dtypes import PRECISIONS, Precision
from essm_deploy.runtime.manifest import Engine
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.planning import NAMES, lawful_lowerings
from tests.checkpoints import BYTES, KEYWORDS, make_checkpoint
from tests.families.test_es_ssm import with_unit_gain

LONG = {"seq_len": 300, "k_max": 4, "budgets": [2, 4]}
"""Longer than what the filters themselves are used for, so that there is a realization."""
MODELS = {"language model": BYTES, "classifier": KEYWORDS}
HALVES: list[Precision] = ["fp16", "bf16"]
EVALUATOR = 1e-6
"""Two float32 programs that sum in different orders; measured 1e-7 to 4e-7."""


class Graphs:
    """A backend of which only the graphs matter: this machine's ONNX Runtime would refuse bfloat16."""

    name = "onnxruntime"

    def missing(self) -> str | None:
        return None

    def requirements(self) -> dict[str, Any]:
        return {}

    def build(self, root: Path, engine: Engine) -> Engine:
        return engine


class Built:
    """Engines of a checkpoint with test vectors of one budget."""

    def __init__(self, folder: Path, checkpoint: Checkpoint, precision: Precision, budget: int, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        family, self.root = family_of(checkpoint), folder
        self.emitter: Emitter = prepare(folder, checkpoint, [budget], 1, Graphs(), precision=precision, **options)
        self.inputs = family.example_inputs(checkpoint, 2, 5)
        self.expected = family.reference(family.slice(checkpoint, budget), self.inputs)

    def error(self, engine: Engine, *others: Engine) -> float:
        return check_numerics(self.root, [engine, *others], engine, self.inputs, self.expected).max_rel_error


@pytest.fixture(scope="module", params=MODELS)
def long_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("precision") / "model"
    return open_checkpoint(make_checkpoint(folder, MODELS[request.param], None, smooth=True, **LONG))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_lowering_is_within_the_bound_of_its_precision(
    tmp_path: Path, long_model: Checkpoint, name: str, precision: Precision
) -> None:
    """Emitting proves the island and the policy; this proves the numbers, at random weights with a spectral gain of order 1."""

    def planner(problem: ConvProblem) -> Lowering:
        return lawful_lowerings(problem, name)[0]

    built = Built(tmp_path / "engines", long_model, precision, 4, planner=planner)
    engine = built.emitter.sequence(4)
    error = built.error(engine)
    assert error <= bound_of(engine)
    assert (error > 1e-5) == (precision != "fp32")  # it did round


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("short", [False, True], ids=["recurrent", "fir"])
def test_streams_are_within_the_bound_of_their_precision(
    tmp_path: Path, long_model: Checkpoint, precision: Precision, short: bool
) -> None:
    base = BYTES if "vocab_size" in long_model.config else KEYWORDS
    model = open_checkpoint(make_checkpoint(tmp_path / "short", base, None, k_max=4, budgets=[4])) if short else long_model
    built = Built(tmp_path / "engines", model, precision, 4)
    engines = [built.emitter.stream(4, chunk) for chunk in (1, 20)]
    anchor = built.emitter.anchor()
    for engine in engines:
        assert {i.dtype for i in (*engine.inputs, *engine.outputs)} <= {"float32", "int64"}
        assert built.error(engine, *engines, *([anchor] if anchor else [])) <= bound_of(engine)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("base", MODELS.values(), ids=MODELS)
def test_any_batch_in_half_precision(tmp_path: Path, base: dict[str, Any], precision: Precision) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "model", base, None))
    family, batch = family_of(checkpoint), "batch"
    free: Dim = batch
    emitter = prepare(tmp_path, checkpoint, [8], free, Graphs(), precision=precision)
    inputs = family.example_inputs(checkpoint, 3, 5)
    together = evaluated(tmp_path, emitter.sequence(8), None).run(inputs)["logits"]
    expected = family.reference(checkpoint, inputs)["logits"]
    assert vectors.relative_error(together, expected) <= vectors.HALF_BOUNDS[precision]
    emitter.stream(8, 5)  # the policy holds in its graph as well


@pytest.mark.parametrize("budget", [4, 32])
@pytest.mark.parametrize("precision", HALVES)
def test_the_shipped_model_bears_half_precision(shipped: Path, tmp_path: Path, precision: Precision, budget: int) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(shipped), precision, budget)
    sequence, stream = built.emitter.sequence(budget), built.emitter.stream(budget, 10)
    assert built.error(sequence) <= bound_of(sequence)
    assert built.error(stream, stream, built.emitter.stream(budget, 1)) <= bound_of(stream)


@pytest.mark.parametrize("budget", [4, 16])
def test_half_precision_is_borne_at_unit_spectral_gain_too(shipped: Path, tmp_path: Path, budget: int) -> None:
    """Where the spectral branch weighs as much as its input: with the gates' scores in fp16 it was 3.3e-3 at K=4."""
    trained = open_checkpoint(shipped)
    built = Built(tmp_path / "engines", replace(trained, tensors=with_unit_gain(trained)), "fp16", budget)
    assert built.error(built.emitter.sequence(budget)) <= 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_evaluator_is_onnx_runtime_in_fp32(tmp_path: Path, long_model: Checkpoint, name: str) -> None:
    built = Built(tmp_path / "engines", long_model, "fp32", 4, planner=lambda problem: lawful_lowerings(problem, name)[0])
    engine = built.emitter.sequence(4)
    one = {key: array[:1] for key, array in built.inputs.items()}
    engine_outputs = vectors.open_session(built.root, engine, None).run(one)["logits"]
    outputs = evaluated(built.root, engine, None).run(one)["logits"]
    assert vectors.relative_error(outputs, engine_outputs.astype(np.float64)) <= EVALUATOR
    assert outputs.dtype == engine_outputs.dtype


def test_engines_say_their_precision_and_no_weight_is_stored_twice(tmp_path: Path, keywords: Path) -> None:
    sizes = {}
    for precision in PRECISIONS:
        built = Built(tmp_path / precision, open_checkpoint(keywords), precision, 8)
        engine = built.emitter.sequence(8)
        suffix = "" if precision == "fp32" else f"-{precision}"
        assert (engine.id, engine.precision, engine.files[0]) == (
            f"k8-sequence{suffix}",
            precision,
            f"k8-sequence{suffix}.onnx",
        )
        assert built.emitter.stream(8, 1).id == f"k8-stream-1{suffix}"
        graph = onnx.load(tmp_path / precision / engine.files[0], load_external_data=False).graph
        entries = [{e.key: e.value for e in t.external_data} for t in graph.initializer]
        stored = [int(e["length"]) for e in entries if e.get("location") == "weights.bin"]
        sizes[precision] = sum(stored)
    assert sizes["fp16"] == sizes["bf16"] < 0.55 * sizes["fp32"]


def scaled(keywords: Path, tmp_path: Path, name: str, factor: float) -> Checkpoint:
    checkpoint = open_checkpoint(keywords)
    return replace(checkpoint, tensors={**checkpoint.tensors, name: (checkpoint.tensors[name] * factor).astype("f4")})


def test_a_weight_that_half_cannot_hold_is_named(keywords: Path, tmp_path: Path) -> None:
    model = scaled(keywords, tmp_path, "layers.0.ffn.up.weight", 1e6)
    with pytest.raises(PrecisionError, match=r"the weight layers\.0\.ffn\.up\.weight reaches"):
        Built(tmp_path / "engines", model, "fp16", 8)
    Built(tmp_path / "bf16", model, "bf16", 8)


@pytest.mark.parametrize("kind", ["sequence", "stream"])
def test_a_node_that_overflows_is_named(keywords: Path, tmp_path: Path, kind: str) -> None:
    """The weights fit, their products do not."""
    model = scaled(keywords, tmp_path, "layers.0.ffn.up.weight", 3e4)
    built = Built(tmp_path / "engines", model, "fp16", 8)
    engine = built.emitter.sequence(8) if kind == "sequence" else built.emitter.stream(8, 1)
    with pytest.raises(PrecisionError, match=r"node layers\.0/Gemm_1 \(Gemm\) reaches .* FLOAT16 ends at 6\.55e\+04"):
        built.error(engine)
    brain = Built(tmp_path / "bf16", model, "bf16", 8)
    assert brain.error(brain.emitter.sequence(8)) <= 2e-2


def test_a_bound_that_is_exceeded_names_the_node(keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(keywords), "bf16", 8)
    engine = built.emitter.sequence(8)
    monkeypatch.setitem(vectors.HALF_BOUNDS, "bf16", 1e-4)
    with pytest.raises(PrecisionError, match=r"more than 1e-04: node layers\.0/Gemm is the first to be off by more"):
        built.error(engine)


def test_the_peak_of_a_sound_engine_is_reported(keywords: Path, tmp_path: Path) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(keywords), "fp16", 8)
    found = check_numerics(built.root, [], built.emitter.sequence(8), built.inputs, built.expected)
    assert found.peak_node is not None
    assert 1 < found.peak < 100


def test_an_engine_that_cannot_run_here_is_judged_by_its_graph(keywords: Path, tmp_path: Path) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(keywords), "bf16", 8)
    engine = built.emitter.sequence(8)
    check = check_engine(built.root, [], engine, built.inputs, built.expected)
    assert (check.judged, check.bound) == ("graph", 2e-2)
    assert check.max_rel_error == check_built(built.root, [], engine, built.inputs, built.expected)


def test_an_engine_of_another_backend_is_judged_by_the_graph_that_it_names(keywords: Path, tmp_path: Path) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(keywords), "fp16", 8)
    graph = built.emitter.sequence(8)
    engine = replace(graph, backend="of-the-future", files=("engine.plan",), graph=graph.files)
    check = check_engine(built.root, [], engine, built.inputs, built.expected)
    assert check.judged == "graph"
    assert check.max_rel_error == pytest.approx(graph_error(built.root, [], graph, built.inputs, built.expected))
    with pytest.raises(IntegrityError, match="does not hold its graph"):
        check_engine(built.root, [], replace(engine, graph=()), built.inputs, built.expected)


def test_an_fp16_engine_of_onnx_runtime_is_judged_itself(keywords: Path, tmp_path: Path) -> None:
    built = Built(tmp_path / "engines", open_checkpoint(keywords), "fp16", 8)
    engine = built.emitter.sequence(8)
    check = check_engine(built.root, [], engine, built.inputs, built.expected)
    assert check.judged == "engine"
    assert check.max_rel_error == engine_error(built.root, [], engine, built.inputs, built.expected) <= 2e-3
