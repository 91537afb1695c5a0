"""The pipeline: the right budget is chosen and bundled, and whatever goes wrong leaves nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import compile, runtime
from essm_deploy.compile import Request
from essm_deploy.compile.job import key_of, look_up
from essm_deploy.errors import OutputError, UsageError, VerificationError
from essm_deploy.profiling import sweep
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.verdict import Attempt, Latency, Limits, Measurement, Memory

FAST = Settings(min_samples=100, min_seconds=0.05, max_seconds=5.0, warmup_seconds=0.2)
QUIET: Callable[[str], None] = lambda line: None  # noqa: E731


def simulated(budget: int, attempt: Attempt) -> Measurement:
    """A quiet device: 1 ms + 0.1 ms a channel, 50 MiB + 1 MiB a channel."""
    rng = np.random.default_rng(budget)
    samples = (1 + 0.1 * budget) * (1 + 0.01 * rng.random(400))
    memory = Memory((50 + budget) * 2**20, baseline_bytes=40 * 2**20)
    return Measurement(budget, Latency.from_samples(samples.tolist()), memory, tuple(samples), attempt=attempt.number)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measures by the law above instead of by the clock; returns the budgets that were measured."""
    measured: list[int] = []

    def measure(launcher: Any, root: Any, engine: Any, settings: Any, *, budget: int, attempt: Attempt) -> Measurement:
        measured.append(budget)
        return simulated(budget, attempt)

    monkeypatch.setattr(sweep, "measure_engine", measure)
    return measured


def request(checkpoint: Path, **limits: Any) -> Request:
    return Request(checkpoint, "cpu", Limits(**limits), settings=FAST)


@pytest.mark.parametrize(
    ("limits", "chosen"),
    [
        ({}, 8),
        ({"max_latency_ms": 5.0}, 8),
        ({"max_latency_ms": 1.6}, 4),
        ({"max_latency_ms": 1.3}, 2),
        ({"max_memory_bytes": 55 * 2**20}, 4),
        ({"max_latency_ms": 1.6, "max_memory_bytes": 53 * 2**20}, 2),
        ({"min_quality": 0.85, "max_latency_ms": 1.6}, 4),
        ({"min_retention": 0.98, "max_latency_ms": 1.6}, 4),
    ],
)
def test_the_largest_budget_that_meets_every_limit_is_bundled(
    keywords: Path, tmp_path: Path, device: list[int], limits: dict[str, Any], chosen: int
) -> None:
    document = compile.build(request(keywords, **limits), tmp_path / "out", QUIET)
    assert (document["status"], document["budget"]) == ("ok", chosen)
    assert [b.axes for b in runtime.read_manifest(tmp_path / "out").budgets] == [{"k": chosen}]
    assert document["verification"]["max_rel_error"] < 2e-6


@pytest.mark.parametrize(
    ("limits", "hint"),
    [
        ({"max_latency_ms": 1.0}, "--max-latency 1.2"),
        ({"max_memory_bytes": 10 * 2**20}, "--max-memory 52 MiB"),
        ({"min_quality": 0.99}, "--min-quality 0.91"),
        ({"min_quality": 0.85, "max_latency_ms": 1.3}, "budget 4"),
    ],
)
def test_nothing_fits_is_an_answer_that_says_what_would(
    keywords: Path, tmp_path: Path, device: list[int], limits: dict[str, Any], hint: str
) -> None:
    document = compile.build(request(keywords, **limits), tmp_path / "out", QUIET)
    assert (document["status"], document["budget"], document["bundle"]) == ("nothing_fits", None, None)
    assert hint in document["message"]
    assert not (tmp_path / "out").exists()


def test_budgets_of_ones_own_are_the_candidates(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    asked = Request(keywords, "cpu", Limits(max_latency_ms=1.65), budgets=(3, 6, 7), settings=FAST)
    assert compile.build(asked, tmp_path / "out", QUIET)["budget"] == 6
    wrong = Request(keywords, "cpu", budgets=(3, 9), settings=FAST)
    with pytest.raises(UsageError, match="budget 9 is out of range"):
        compile.build(wrong, tmp_path / "out", QUIET)


def test_every_candidate_is_measured_on_request_and_every_sample_is_kept(keywords: Path, device: list[int]) -> None:
    document = compile.profile(Request(keywords, "cpu", exhaustive=True, settings=FAST), QUIET)
    assert sorted(device) == [2, 4, 8]
    assert [c["budget"] for c in document["candidates"]] == [2, 4, 8]
    assert all(len(c["samples"]) == 400 and c["basis"] == "measured" for c in document["candidates"])
    lines = Path(document["observations"]).read_text().splitlines()
    assert len(lines) == 4  # a header and three engines


def test_an_interrupted_sweep_is_resumed_and_a_finished_one_is_not(
    keywords: Path, device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Request(keywords, "cpu", exhaustive=True, settings=FAST)
    calm = sweep.measure_engine

    def interrupted(*args: Any, budget: int, **kwargs: Any) -> Measurement:
        if budget == 4:
            raise KeyboardInterrupt
        return calm(*args, budget=budget, **kwargs)

    monkeypatch.setattr(sweep, "measure_engine", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"observations\.jsonl keeps what was measured: the same command resumes"):
        compile.profile(question, QUIET)
    monkeypatch.setattr(sweep, "measure_engine", calm)
    device.clear()
    compile.profile(question, QUIET)
    assert sorted(device) == [2, 4]  # 8 was measured before the interruption
    device.clear()
    compile.profile(question, QUIET)
    assert sorted(device) == [2, 4, 8]


def test_a_changed_weight_does_not_resume(keywords: Path, device: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(look_up(request(keywords), QUIET))
    file = keywords / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5000] ^= 1
    file.write_bytes(content)
    config = json.loads((keywords / "config.json").read_text())
    monkeypatch.setattr("essm_deploy.families.es_ssm.bank_sha256", lambda filters: config["bank"]["sha256"])
    assert key_of(look_up(request(keywords), QUIET)) != before


def test_an_engine_that_is_off_fails_the_build_and_leaves_nothing(
    keywords: Path, tmp_path: Path, device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("essm_deploy.families.es_ssm.layers.math.sqrt", lambda k: k + 1.0)
    with pytest.raises(VerificationError, match="differs from the float64 reference"):
        compile.build(request(keywords), tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_an_output_of_somebody_else_is_refused_before_anything_is_measured(
    keywords: Path, tmp_path: Path, device: list[int]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("mine")
    with pytest.raises(OutputError, match="did not write"):
        compile.build(request(keywords), tmp_path / "out", QUIET)
    assert device == []
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_a_full_disk_leaves_the_old_bundle(
    keywords: Path, tmp_path: Path, device: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    compile.build(request(keywords), out, QUIET)
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("essm_deploy.bundle.writer.write_vectors", full)
    with pytest.raises(Exception, match="No space left on device"):
        compile.build(request(keywords, max_latency_ms=1.6), out, QUIET)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keywords", "out"]


def test_a_bundle_is_replaced_by_a_new_one(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    compile.build(request(keywords), tmp_path / "out", QUIET)
    compile.build(request(keywords, max_latency_ms=1.6), tmp_path / "out", QUIET)
    assert runtime.read_manifest(tmp_path / "out").default == "k4-sequence"


def test_a_bundle_carries_the_weights_of_its_budget_and_no_more(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    sizes = {}
    for budget in (2, 8):
        compile.build(Request(keywords, "cpu", budgets=(budget,), settings=FAST), tmp_path / "out", QUIET)
        sizes[budget] = (tmp_path / "out" / "weights.bin").stat().st_size
    assert sizes[8] - sizes[2] >= 2 * 6 * 16 * 16 * 4 - 2 * 4096  # two layers, six projections fewer, up to page ends


def test_any_batch_on_request(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    asked = Request(keywords, "cpu", dynamic_batch=True, settings=FAST)
    compile.build(asked, tmp_path / "out", QUIET)
    model = runtime.load(tmp_path / "out")
    features = np.random.default_rng(0).standard_normal((3, 24, 10)).astype("f4")
    together = model.run(features=features)["logits"]
    apart = [model.run(features=row)["logits"] for row in features]
    np.testing.assert_allclose(together, apart, rtol=2e-5, atol=1e-6)


def test_a_real_device_is_measured(keywords: Path, tmp_path: Path) -> None:
    document = compile.build(request(keywords, max_latency_ms=2000.0), tmp_path / "out", QUIET)
    assert document["budget"] == 8
    assert document["latency_ms"]["samples"] >= 100
    assert document["latency_ms"]["upper"] <= 2000.0
    assert document["memory"]["peak_bytes"] > document["memory"]["baseline_bytes"] > 0
    profile = runtime.read_manifest(tmp_path / "out").engines[0].profile
    assert profile is not None
    assert profile["latency_ms"]["p95"] == document["latency_ms"]["p95"]


def test_budgets_that_are_kept_share_one_state_and_a_stream_may_change_to_them(
    language_model: Path, tmp_path: Path, device: list[int]
) -> None:
    asked = Request(language_model, "cpu", Limits(max_latency_ms=1.6), keep=(2, 8), settings=FAST)
    document = compile.build(asked, tmp_path / "out", QUIET)
    manifest = runtime.read_manifest(tmp_path / "out")
    assert document["budget"] == 4
    assert [b.id for b in manifest.budgets] == ["k2", "k4", "k8"]
    assert manifest.default == "k4-stream-1"
    assert len({e.stream.state for e in manifest.engines if e.stream}) == 1
    with runtime.load(tmp_path / "out").stream() as stream:
        stream.push([1, 2, 3])
        stream.budget = 8
        assert stream.push([4]).shape == (30,)


def test_a_kept_budget_out_of_range_is_refused(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    with pytest.raises(UsageError, match="budget 9 is out of range"):
        compile.build(Request(keywords, "cpu", keep=(9,), settings=FAST), tmp_path / "out", QUIET)
