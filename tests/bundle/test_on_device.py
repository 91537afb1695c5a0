"""A choice by estimate meets the device: it is confirmed or moved, and the manifest says which."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import runtime
from essm_deploy.backends.onnxruntime import OnnxRuntimeBackend
from essm_deploy.bundle import on_device
from essm_deploy.bundle.estimated import Question, build_estimated
from essm_deploy.bundle.on_device import verify_on_device
from essm_deploy.checkpoint import content_hash
from essm_deploy.errors import UnavailableError, UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.profiling.candidates import candidates_of
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.verdict import Attempt, Latency, Limits, Measurement, Memory
from essm_deploy.runtime.manifest import read_manifest
from essm_deploy.targets.description import find_target
from tests.checkpoints import make_checkpoint

QUIET: Callable[[str], None] = lambda line: None  # noqa: E731


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    """A copy of that bundle, for the test to change."""
    return shutil.copytree(built, tmp_path / "out")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chosen by the estimate for an RTX 3090, K=4 between 2 and 8, with engines that run on any CPU."""
    root = tmp_path_factory.mktemp("estimated")
    checkpoint = open_checkpoint(make_checkpoint(root / "keywords"))
    family = family_of(checkpoint)
    question = Question(
        checkpoint=checkpoint,
        hash=content_hash(checkpoint),
        target=find_target("rtx3090"),
        backend=OnnxRuntimeBackend(),
        batch=1,
        kind="sequence",
        precision="fp32",
        lowering=None,
        limits=Limits(),
        candidates=candidates_of(checkpoint, family.config(checkpoint), "trained"),
        inputs=family.example_inputs(checkpoint, 2, 0),
        build_config={},
        progress=QUIET,
    )
    times = {c["budget"]: c["latency_ms"]["estimate"] for c in build_estimated(question, root / "all")["candidates"]}
    limited = replace(question, limits=Limits(max_latency_ms=(times[4] + times[8]) / 2))
    assert build_estimated(limited, root / "out")["budget"] == 4
    return root / "out"


def clock(monkeypatch: pytest.MonkeyPatch, bundle: Path, shares: dict[str, float]) -> None:
    """The device's law: a call takes that share of the latency limit."""
    limit = read_manifest(bundle).limits["max_latency_ms"]

    def measure(launcher: Any, root: Any, engine: Any, settings: Any, *, budget: str, attempt: Attempt) -> Measurement:
        samples = (shares[budget] * limit * (1 + 0.01 * np.random.default_rng(0).random(400))).tolist()
        return Measurement(budget, Latency.from_samples(samples), Memory(2**20), tuple(samples), attempt=attempt.number)

    monkeypatch.setattr(on_device, "measure_engine", measure)


ON_THE_LIMIT = 1 / (1 + 0.01 * float(np.quantile(np.random.default_rng(0).random(400), 0.95)))


@pytest.mark.parametrize(
    ("shares", "status", "default"),
    [
        ({"k2": 0.5, "k4": 0.7, "k8": 2.0}, "confirmed", "k4-sequence"),
        ({"k2": 0.5, "k4": 0.6, "k8": 0.7}, "moved", "k8-sequence"),
        ({"k2": 0.5, "k4": 1.5, "k8": 2.0}, "moved", "k2-sequence"),
        ({"k2": 1.5, "k4": 1.8, "k8": 2.0}, "nothing_fits", "k4-sequence"),
        ({"k2": 0.5, "k4": 0.7, "k8": ON_THE_LIMIT}, "inconclusive", "k4-sequence"),
        ({"k2": 0.5, "k4": ON_THE_LIMIT, "k8": 2.0}, "inconclusive", "k2-sequence"),
    ],
)
def test_the_device_confirms_the_choice_or_moves_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, shares: dict[str, float], status: str, default: str
) -> None:
    clock(monkeypatch, bundle, shares)
    document, checks = verify_on_device(bundle, None, Settings(), QUIET)  # type: ignore[arg-type]
    assert (document["status"], document["default"]) == (status, default)
    manifest = read_manifest(bundle)
    assert manifest.default == default
    profiles = [engine.profile for engine in manifest.engines if engine.kind == "sequence"]
    assert [profile["basis"] for profile in profiles if profile] == ["measured"] * 3
    assert {check.judged for check in checks} == {"engine"}
    assert runtime.load(bundle).engine.id == default


def test_what_was_proved_and_what_ran_are_both_kept(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    for engine in content["engines"]:
        engine["proof"] = {"tf32": False, "verified_on_device": "not yet verified"}
    path.write_text(json.dumps(content))
    clock(monkeypatch, bundle, {"k2": 0.5, "k4": 0.7, "k8": 2.0})
    verify_on_device(bundle, None, Settings(), QUIET)  # type: ignore[arg-type]
    for engine in read_manifest(bundle).engines:
        assert engine.proof is not None
        assert engine.proof["tf32"] is False
        assert engine.proof["verified_on_device"]["max_rel_error"] < 1e-5


def test_a_cuda_graph_is_refused_where_no_engine_could_be_one(bundle: Path) -> None:
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="holds no TensorRT engine"):
        verify_on_device(bundle, None, Settings(), QUIET, cuda_graph=True)  # type: ignore[arg-type]
    assert (bundle / "manifest.json").read_bytes() == before


def test_without_the_device_nothing_is_measured_and_nothing_changes(bundle: Path) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["engines"][0]["requires"] = {"compute_capability": ["9.9"]}
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    with pytest.raises(UnavailableError, match=r"compute capability 9\.9"):
        verify_on_device(bundle, None, Settings(), QUIET)  # type: ignore[arg-type]
    assert path.read_bytes() == before
