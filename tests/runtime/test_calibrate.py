"""`load(..., calibrate=True)`: the device decides between the bundle's budgets, once, and what it decided is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essm_deploy import runtime
from essm_deploy.errors import (
    EssmError,
    IntegrityError,
    UnavailableError,
    UsageError,
    VerificationError,
    WorkerError,
)
from essm_deploy.profiling import statistics
from essm_deploy.runtime import calibrate, calibration, fresh
from essm_deploy.runtime.files import sha256_file
from essm_deploy.runtime.order import bounds, quantile
from essm_deploy.runtime.wire import encode_arrays
from tests.runtime.streams import write_stream_bundle
from tests.runtime.tiny import LENGTH, WIDTH, expected

LIMIT_MS = 10.0


@pytest.fixture
def estimated(bundle: Path) -> Path:
    """The tiny bundle as one that was built without its device: test vectors, and a default that nobody has measured."""
    return with_vectors(bundle)


def with_vectors(bundle: Path, wrong: float = 0.0, **limits: Any) -> Path:
    features = np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH)).astype("f4")
    lengths = np.array([LENGTH, 4])
    logits = expected(features, lengths) + wrong
    arrays = {"input/features": features, "input/lengths": lengths}
    np.savez(bundle / "test_vectors.npz", **arrays, **{f"output/{k}/logits": logits for k in ("k2", "k8")})
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["files"]["test_vectors.npz"] = sha256_file(bundle / "test_vectors.npz")
    content["limits"] = limits or {"max_latency_ms": LIMIT_MS}
    path.write_text(json.dumps(content))
    return bundle


class Device:
    """A worker of a device on which a call of each engine takes the time of its law; `asked` is what was asked of it."""

    def __init__(self, **laws: Any) -> None:
        self.laws = laws
        self.asked: list[tuple[str, str]] = []
        self.memory: dict[str, Any] = {"event": "memory", "peak_bytes": 50, "bounded_by": "peak_bytes"}

    def __call__(self, request: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        budget = request["engine"]["budget"]
        self.asked.append((request["op"], budget))
        if request["op"] == "run":
            return self.replay(request)
        law = self.laws[budget]
        samples = law(request) if callable(law) else list(law * (1 + 0.01 * np.random.default_rng(0).random(400)))
        loaded = {"event": "loaded", "provider": "imaginary", "load_ms": 1.0}
        done = {"event": "done", "waited_share": self.laws.get("waited", 0.0)}
        return [{"event": "hello"}, loaded, {"event": "samples", "ms": samples}, self.memory, done]

    def replay(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        given = calibrate.decode_arrays(request["inputs"], "inputs")
        logits = expected(given["features"], given["lengths"]).astype("f4")
        return [{"event": "outputs", "outputs": encode_arrays({"logits": logits})}, {"event": "done"}]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Device]:
    def put(device: Device) -> Device:
        monkeypatch.setattr(calibrate, "ask_worker", device)
        return device

    return put


@pytest.mark.parametrize(
    ("laws", "status", "default"),
    [
        ({"k2": 2.0, "k8": 5.0}, "confirmed", "k8-sequence"),
        ({"k2": 2.0, "k8": 20.0}, "moved", "k2-sequence"),
        ({"k2": 15.0, "k8": 20.0}, "nothing_fits", "k8-sequence"),
    ],
)
def test_the_largest_engine_that_surely_fits_is_opened(
    estimated: Path, install: Any, laws: dict[str, float], status: str, default: str
) -> None:
    install(Device(**laws))
    model = runtime.load(estimated, calibrate=True)
    assert model.engine.id == default
    assert model.calibration is not None
    assert (model.calibration["status"], model.calibration["basis"]) == (status, "measured")
    figures = {entry["budget"]: entry for entry in model.calibration["engines"]}
    assert figures["k2"]["latency_ms"]["lower"] <= laws["k2"] * 1.01 <= figures["k2"]["latency_ms"]["upper"] * 1.01
    assert figures["k8"]["max_rel_error"] < 1e-6
    assert figures["k8"]["environment"]["provider"] == "imaginary"


def test_a_slow_device_moves_down_and_the_manifest_stays_as_it_was(estimated: Path, install: Any) -> None:
    before = (estimated / "manifest.json").read_bytes()
    install(Device(k2=2.0, k8=20.0))
    assert runtime.load(estimated, calibrate=True).engine.id == "k2-sequence"
    assert (estimated / "manifest.json").read_bytes() == before
    plain = runtime.load(estimated)
    assert (plain.engine.id, plain.calibration) == ("k8-sequence", None)


def test_the_second_load_asks_nobody(estimated: Path, install: Any) -> None:
    first = install(Device(k2=2.0, k8=20.0))
    record = runtime.load(estimated, calibrate=True).calibration
    assert first.asked == [("run", "k2"), ("measure", "k2"), ("run", "k8"), ("measure", "k8")]
    second = install(Device(k2=2.0, k8=2.0))
    again = runtime.load(estimated, calibrate=True)
    assert (second.asked, again.engine.id, again.calibration) == ([], "k2-sequence", {"schema_version": "1.0", **record})


@pytest.mark.parametrize("changed", ["device", "versions", "content", "threads"])
def test_another_device_version_content_or_thread_count_measures_anew(
    estimated: Path, install: Any, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    install(Device(k2=2.0, k8=20.0))
    runtime.load(estimated, calibrate=True, threads=1)
    if changed == "device":
        monkeypatch.setattr(calibration.host, "describe", lambda: {"cpu": "another"})
    elif changed == "versions":
        monkeypatch.setattr(calibration.onnxruntime, "__version__", "9.9")
    elif changed == "content":
        with_vectors(estimated, max_latency_ms=LIMIT_MS + 1)
    second = install(Device(k2=2.0, k8=5.0))
    model = runtime.load(estimated, calibrate=True, threads=2 if changed == "threads" else 1)
    assert (model.engine.id, bool(second.asked)) == ("k8-sequence", True)


def test_a_limit_between_the_bounds_gets_one_longer_look(estimated: Path, install: Any) -> None:
    seen: list[int] = []

    def law(request: dict[str, Any]) -> list[float]:
        seen.append(request["min_samples"])
        return list(np.linspace(LIMIT_MS - 2, LIMIT_MS + 0.105, 400))  # its p95 is the limit

    install(Device(k2=2.0, k8=law))
    model = runtime.load(estimated, calibrate=True)
    assert (model.engine.id, seen) == ("k2-sequence", [300, 900])
    assert model.calibration is not None
    assert model.calibration["status"] == "inconclusive"


def test_a_busy_machine_proves_nothing_against_an_engine(estimated: Path, install: Any) -> None:
    def law(request: dict[str, Any]) -> list[float]:
        return [LIMIT_MS / 2, *([2 * LIMIT_MS] * 399)]

    device = install(Device(k2=2.0, k8=law, waited=0.5))
    assert runtime.load(estimated, calibrate=True).engine.id == "k2-sequence"
    assert device.asked.count(("measure", "k8")) == 2
    (estimated / "calibration.json").unlink()
    device.laws["waited"] = 0.0
    device.asked.clear()
    runtime.load(estimated, calibrate=True)
    assert device.asked.count(("measure", "k8")) == 1


def test_an_engine_that_fails_does_not_fit(estimated: Path, install: Any) -> None:
    def law(request: dict[str, Any]) -> list[float]:
        raise WorkerError("it was killed")

    install(Device(k2=2.0, k8=law))
    model = runtime.load(estimated, calibrate=True)
    assert model.engine.id == "k2-sequence"
    assert model.calibration is not None
    assert "it was killed" in model.calibration["engines"][1]["reason"]


@pytest.mark.parametrize(("peak", "status"), [(50, "confirmed"), (200, "nothing_fits")])
def test_memory_is_held_against_the_figure_that_the_worker_names(bundle: Path, install: Any, peak: int, status: str) -> None:
    with_vectors(bundle, max_memory_bytes=100)
    device = install(Device(k2=2.0, k8=2.0))
    device.memory = {"event": "memory", "peak_bytes": 10**9, "device_bytes": peak, "bounded_by": "device_bytes"}
    model = runtime.load(bundle, calibrate=True)
    assert model.calibration is not None
    assert (model.calibration["status"], model.engine.id) == (status, "k8-sequence")
    device.memory = {"event": "memory", "peak_bytes": None, "bounded_by": "peak_bytes"}
    (bundle / "calibration.json").unlink()
    with pytest.raises(UnavailableError, match="peak_bytes, which cannot be read"):
        runtime.load(bundle, calibrate=True)


@pytest.mark.parametrize(("retention", "default"), [(0.99, "k8-sequence"), (0.5, "k2-sequence")])
def test_a_budget_without_the_quality_asked_for_is_not_moved_to(
    bundle: Path, install: Any, retention: float, default: str
) -> None:
    with_vectors(bundle, max_latency_ms=LIMIT_MS, min_retention=retention)
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["budgets"][0]["quality"] = {"metric": "accuracy", "value": 0.9, "direction": "higher", "retention": 0.9}
    path.write_text(json.dumps(content))
    device = install(Device(k2=2.0, k8=20.0))
    assert runtime.load(bundle, calibrate=True).engine.id == default
    assert (("measure", "k2") in device.asked) == (retention < 0.9)


def test_an_engine_that_computes_something_else_is_not_timed(bundle: Path, install: Any) -> None:
    device = install(Device(k2=2.0, k8=2.0))
    with pytest.raises(VerificationError, match=r"k2-sequence differs from the float64 reference by .*must not be used"):
        runtime.load(with_vectors(bundle, wrong=0.1), calibrate=True)
    assert device.asked == [("run", "k2")]
    assert not (bundle / "calibration.json").exists()


def test_without_test_vectors_nothing_is_believed(bundle: Path, install: Any) -> None:
    install(Device(k2=2.0, k8=2.0))
    with pytest.raises(IntegrityError, match=r"no test_vectors\.npz"):
        runtime.load(bundle, calibrate=True)


@pytest.mark.parametrize("choice", [{"budget": 2}, {"engine": "k2-sequence"}])
def test_measuring_chooses_and_so_nobody_else_may(estimated: Path, choice: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="neither budget nor engine"):
        runtime.load(estimated, calibrate=True, **choice)


def test_engines_that_cannot_run_here_are_named_before_anything_is_measured(estimated: Path, install: Any) -> None:
    path = estimated / "manifest.json"
    content = json.loads(path.read_text())
    content["engines"][0]["requires"] = {"compute_capability": ["9.9"]}
    path.write_text(json.dumps(content))
    device = install(Device(k2=2.0, k8=2.0))
    with pytest.raises(UnavailableError, match=r"compute capability 9\.9"):
        runtime.load(estimated, calibrate=True)
    assert device.asked == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: b"",
        lambda text: b"\xff\xfe not text",
        lambda text: text[: len(text) // 2],
        lambda text: b"[" * 100_000,
        lambda text: b"[]",
        lambda text: text + b" " * (1 << 20),
        lambda text: text.replace(b'"k2-sequence",\n  "engines"', b'"../../etc/passwd",\n  "engines"'),
        lambda text: text.replace(b'"measured"', b'"estimated"', 1),
        lambda text: text.replace(b'"moved"', b'"splendid"'),
        lambda text: text.replace(b'"1.0"', b'"2.0"', 1),
        lambda text: text.replace(b'"content": "', b'"content": "0'),
        lambda text: text.replace(b'"engines": [', b'"engines": 3, "old": [', 1),
        lambda text: text.replace(b'"p50": ', b'"p50": NaN, "p49": ', 1),
    ],
)
def test_a_record_that_is_not_sound_is_measured_anew(estimated: Path, install: Any, spoil: Any) -> None:
    install(Device(k2=2.0, k8=20.0))
    runtime.load(estimated, calibrate=True)
    path = estimated / "calibration.json"
    sound = path.read_bytes()
    spoiled = spoil(sound)
    assert spoiled != sound
    path.write_bytes(spoiled)
    second = install(Device(k2=2.0, k8=5.0))
    assert runtime.load(estimated, calibrate=True).engine.id == "k8-sequence"
    assert second.asked
    assert json.loads(path.read_text())["status"] == "confirmed"  # a sound one took its place


def test_a_record_that_is_a_link_out_of_the_bundle_is_replaced_and_its_target_left_alone(
    estimated: Path, install: Any, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere.json"
    target.write_text("precious")
    (estimated / "calibration.json").symlink_to(target)
    install(Device(k2=2.0, k8=20.0))
    model = runtime.load(estimated, calibrate=True)
    assert model.calibration is not None
    assert model.calibration["kept"]
    assert target.read_text() == "precious"
    assert not (estimated / "calibration.json").is_symlink()


def test_where_nothing_can_be_written_the_answer_still_holds(
    estimated: Path, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(calibration, "whole_file", refuse)
    device = install(Device(k2=2.0, k8=20.0))
    for looks in (2, 4):
        model = runtime.load(estimated, calibrate=True)
        assert model.engine.id == "k2-sequence"
        assert model.calibration is not None
        assert not model.calibration["kept"]
        assert len([op for op, _ in device.asked if op == "measure"]) == looks


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of a fraction of a second."""
    warmup = {"max_seconds": 0.1, "window": 3, "tolerance": 0.5}
    short = {"warmup": warmup, "min_samples": 100, "min_seconds": 0.01, "max_seconds": 0.5}
    monkeypatch.setattr(calibrate, "SETTINGS", short)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("limit", "status"), [(1e4, "confirmed"), (1e-6, "nothing_fits")])
def test_a_real_worker_measures_each_engine(bundle: Path, limit: float, status: str) -> None:
    model = runtime.load(with_vectors(bundle, max_latency_ms=limit), calibrate=True, threads=1)
    record = model.calibration
    assert record is not None
    assert (record["status"], model.engine.id) == (status, "k8-sequence")
    for entry in record["engines"]:
        assert 0 < entry["latency_ms"]["p50"] <= entry["latency_ms"]["p95"] <= entry["latency_ms"]["p99"]
        assert entry["latency_ms"]["samples"] >= 50
        assert entry["memory"]["peak_bytes"] > 2**20
        assert entry["environment"]["threads"] == 1
    assert model.run(features=np.zeros((LENGTH, WIDTH), "f4"))["logits"].shape == (2,)


@pytest.mark.usefixtures("quick")
def test_a_stream_is_calibrated_by_its_steps(tmp_path: Path) -> None:
    from tests.runtime.streams import WINDOW, data
    from tests.runtime.streams import expected as reference

    root = write_stream_bundle(tmp_path / "bundle", WINDOW)
    tokens = data(WINDOW, 8)
    outputs = {f"output/k{k}/logits": reference(WINDOW, tokens, [1] * 8, budget=k) for k in (2, 8)}
    np.savez(root / "test_vectors.npz", **{"input/tokens": tokens}, **outputs)
    path = root / "manifest.json"
    content = json.loads(path.read_text())
    content["files"]["test_vectors.npz"] = sha256_file(root / "test_vectors.npz")
    path.write_text(json.dumps(content))
    model = runtime.load(root, calibrate=True, threads=1)
    assert model.calibration is not None
    assert (model.engine.id, model.calibration["status"]) == ("k8-stream-1", "confirmed")
    assert all(entry["max_rel_error"] < 1e-5 for entry in model.calibration["engines"])


@settings(deadline=None)
@given(st.integers(1, 700), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_the_bounds_are_those_of_the_profiler(count: int, fraction: float, confidence: float) -> None:
    samples = [float(i) for i in range(1, count + 1)]
    wanted = statistics.percentile_bounds(samples, fraction, confidence)
    assert bounds(samples[::-1], fraction, confidence) == (wanted.lower, wanted.upper)
    assert quantile(samples[::-1], fraction) == statistics.percentile(samples, fraction)


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("import sys; sys.exit(3)", WorkerError, "status 3"),
        ("print('garbage')", WorkerError, "something else than JSON"),
        ("print('[1]')", WorkerError, "objects with an event"),
        ("""print('{"event": "done"}'); raise SystemExit('it fell over')""", WorkerError, "it fell over"),
        ("""print('{"event": "error", "type": "VerificationError", "message": "off"}')""", VerificationError, "off"),
        ("""print('{"event": "error", "type": "EssmErrorist", "message": "x"}')""", WorkerError, "unknown kind"),
        ("import time; time.sleep(60)", WorkerError, "longer than 0.5 s"),
        (None, UnavailableError, "cannot be started"),
    ],
)
def test_a_worker_that_does_not_answer_as_it_should_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, error: type[EssmError], said: str
) -> None:
    import sys

    (tmp_path / "essm_deploy").mkdir()
    for name in ("__init__", "runtime/__init__", "runtime/worker"):
        path = tmp_path / "essm_deploy" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text((script or "") if name.endswith("worker") else "")
    monkeypatch.setattr(fresh, "_PACKAGES", tmp_path)
    if script is None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(error, match=said) as caught:
        fresh.ask_worker({"op": "measure"}, 0.5 if script and "sleep" in script else 30)
    assert "\n" not in str(caught.value)
