"""ONNX Runtime Web, in Node and in Chromium, computes what ONNX Runtime does, and is measured where it runs."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import compile
from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.compile import Request
from essm_deploy.errors import WorkerError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.files import staging
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.remote import run_engine
from essm_deploy.profiling.verdict import Limits
from essm_deploy.profiling.worker_process import conversation
from essm_deploy.runtime.manifest import Engine, read_manifest
from essm_deploy.runtime.replay import Replay
from essm_deploy.runtime.tensors import Array
from essm_deploy.targets.chromium import ChromiumLauncher
from essm_deploy.targets.node import NodeLauncher
from tests.runtime.streams import Tiny, oracle, write_stream_bundle
from tests.targets.test_web_launchers import QUICK, drain, long_request, running

pytestmark = pytest.mark.slow

BOUND = 1e-5
"""Of ||web - cpu|| / ||cpu||: both round to float32, in another order. Measured: 2e-7 to 8e-7."""

Web = NodeLauncher | ChromiumLauncher


@pytest.fixture(params=["node", "chromium"])
def web(request: pytest.FixtureRequest, package: Path) -> Web:
    """Each of the two, where it is installed."""
    program = request.getfixturevalue(request.param)
    return NodeLauncher() if request.param == "node" else ChromiumLauncher(program)


def emitter_of(checkpoint: Path, root: Path, budgets: list[int]) -> Emitter:
    return prepare(root, open_checkpoint(checkpoint), budgets, 1, BACKENDS["onnxruntime"])


@pytest.fixture(scope="module")
def spotter(shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Emitter:
    return emitter_of(shipped, tmp_path_factory.mktemp("keywords"), [4, 12, 32])


@pytest.fixture(scope="module")
def byte_model(shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Emitter:
    return emitter_of(shipped.with_name("bytes"), tmp_path_factory.mktemp("bytes"), [4, 32])


def difference(web: Web, root: Path, engine: Engine, inputs: dict[str, Array]) -> float:
    """The largest ||web - cpu|| / ||cpu|| over the rows of the outputs."""
    ours, theirs = run_engine(web, root, engine, inputs), Replay(root, engine).run(inputs)
    assert ours.keys() == theirs.keys()
    rows = [(ours[name][row], theirs[name][row]) for name in ours for row in range(len(ours[name]))]
    return max(float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in rows)


@pytest.mark.parametrize("budget", [4, 12, 32])
def test_the_spotter_answers_as_on_the_cpu(budget: int, spotter: Emitter, web: Web) -> None:
    inputs = dict(family_of(spotter.largest).example_inputs(spotter.largest, 3, 7))
    assert difference(web, spotter.root, spotter.sequence(budget), inputs) < BOUND
    one = {name: array[:1] for name, array in inputs.items()}
    assert difference(web, spotter.root, spotter.stream(budget, 1), one) < BOUND


@pytest.mark.parametrize("budget", [4, 32])
def test_the_byte_model_answers_as_on_the_cpu(budget: int, byte_model: Emitter, web: Web) -> None:
    tokens = {"tokens": np.random.default_rng(0).integers(2, 258, (1, 1024))}
    assert difference(web, byte_model.root, byte_model.sequence(budget), tokens) < BOUND
    few = {"tokens": tokens["tokens"][:, :96]}
    assert difference(web, byte_model.root, byte_model.stream(budget, 1), few) < BOUND


@pytest.mark.parametrize(
    "tiny",
    [
        Tiny(),
        Tiny(fir=True),
        Tiny(overflow="restart"),
        Tiny(overflow="restart", fir=True),
        Tiny(overflow="restart", classifier=True),
        Tiny(classifier=True, chunks=(2,)),
        Tiny(batch=2, chunks=(3,)),
    ],
    ids=lambda tiny: f"{tiny.overflow}{'-fir' * tiny.fir}{'-classifier' * tiny.classifier}-{tiny.chunks[0]}-{tiny.batch}",
)
def test_a_stream_goes_on_past_the_trained_length(tiny: Tiny, tmp_path: Path, node: str, package: Path) -> None:
    root = write_stream_bundle(tmp_path / "bundle", tiny)
    entry = next(e for e in json.loads((root / "manifest.json").read_text())["engines"] if e["budget"] == "k8")
    steps = 12 * entry["chunk"]  # L is 8
    rng = np.random.default_rng(0)
    given = rng.standard_normal((tiny.batch, steps, 3)) if tiny.classifier else rng.integers(0, tiny.vocab, (tiny.batch, steps))
    inputs = {"features": given.astype(np.float32)} if tiny.classifier else {"tokens": given}
    expected = oracle(tiny, given, [8] * steps)
    found = run_engine(NodeLauncher(), root, Engine.from_json(entry), inputs)["logits"]
    wanted = expected[:, -1] if tiny.classifier else expected
    # float32 against float64 over 36 tokens, with decays of 0.9: rounding is not amplified.
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_page_is_measured_as_every_worker_is(spotter: Emitter, package: Path, chromium: str) -> None:
    found = measure_engine(ChromiumLauncher(), spotter.root, spotter.sequence(4), QUICK, budget=4)
    assert len(found.samples_ms) >= QUICK.min_samples
    assert found.environment["provider"] == "wasm"
    assert "Chromium" in found.environment["versions"]["browser"]
    assert {"essm_deploy", "browser", "onnxruntime_web"} == set(found.environment["versions"])
    steps = [value / 0.005 for value in found.samples_ms]  # the clock of a cross-origin isolated page
    assert max(abs(value - round(value)) for value in steps) < 0.1
    assert not [warning for warning in found.warnings if warning.startswith("threads")]
    memory = found.memory
    assert memory.baseline_bytes is not None
    assert memory.peak_bytes is not None
    assert 50 * 2**20 < memory.baseline_bytes < memory.peak_bytes < 2 * 2**30
    assert found.waited_share is not None


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_what_was_asked_for(threads: int, spotter: Emitter, web: Web) -> None:
    settings = Settings(min_samples=5, min_seconds=0.0, warmup_seconds=0.1, threads=threads)
    found = measure_engine(web, spotter.root, spotter.sequence(4), settings, budget=4)
    assert found.environment["threads"] == threads


def test_an_engine_whose_weights_are_gone_is_an_error_in_a_page_too(
    spotter: Emitter, tmp_path: Path, package: Path, chromium: str
) -> None:
    engine = spotter.sequence(4)
    (tmp_path / engine.files[0]).write_bytes((spotter.root / engine.files[0]).read_bytes())
    with pytest.raises(Exception, match=r"weights.bin cannot be read: status 404") as caught:
        measure_engine(ChromiumLauncher(), tmp_path, engine, QUICK, budget=4)
    assert type(caught.value).__name__ == "IntegrityError"


@pytest.mark.parametrize("how", ["page", "bridge", "asked"])
def test_nothing_is_left_of_a_browser(
    how: str, spotter: Emitter, package: Path, chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with conversation(ChromiumLauncher()) as talk:
        page = talk.receive("hello", 60.0)["pid"]
        bridge: Any = talk.process
        talk.send(long_request(spotter.root, spotter.sequence(4)))
        for event in ("loaded", "warm", "samples"):
            talk.receive(event, 60.0)
        left = [*descendants(bridge.pid), bridge.pid]
        assert len(list(tmp_path.glob("essm-deploy-*"))) == 1
        end(how, page, bridge)
        if how == "page":
            with pytest.raises(WorkerError, match="the page's process ended"):
                drain(talk)
    deadline = time.monotonic() + 20
    while any(running(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(left) > 4
    assert [pid for pid in left if running(pid)] == []
    if how == "bridge":  # killed outright, it leaves its folder to the next run
        with staging(tmp_path):
            pass
    assert not list(tmp_path.glob("essm-deploy-*"))


def end(how: str, page: int, bridge: Any) -> None:
    if how == "page":
        os.kill(page, signal.SIGKILL)
    elif how == "bridge":
        os.kill(bridge.pid, signal.SIGKILL)
    else:
        bridge.kill()


def descendants(pid: int) -> list[int]:
    found = [int(text) for path in Path(f"/proc/{pid}/task").glob("*/children") for text in path.read_text().split()]
    return [*found, *(child for one in found for child in descendants(one))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["web-wasm", "web-wasm-node"])
def test_a_budget_for_a_browser_is_chosen_in_a_browser(
    target: str, shipped: Path, tmp_path: Path, request: pytest.FixtureRequest, package: Path
) -> None:
    request.getfixturevalue("chromium" if target == "web-wasm" else "node")
    # The bound of a median takes few samples, whatever else the machine does.
    quick, limits = replace(QUICK, statistic="p50"), Limits(max_latency_ms=10_000.0)
    asked = Request(shipped, target, limits, budgets=(2, 4), settings=quick, lowering="toeplitz")
    document = compile.build(asked, tmp_path / "bundle", lambda line: None)
    assert (document["status"], document["budget"], document["target"]) == ("ok", 4, target)
    assert document["verification"]["max_rel_error"] < BOUND
    manifest = read_manifest(tmp_path / "bundle")
    profile = manifest.engine("k4-sequence").profile
    assert manifest.target["name"] == target
    assert profile is not None
    assert profile["basis"] == "measured"
    assert "onnxruntime_web" in json.dumps(document)
    table = compile.profile(replace(asked, exhaustive=True), lambda line: None)
    assert [candidate["budget"] for candidate in table["candidates"]] == [2, 4]
    assert all(candidate["latency_ms"]["basis"] == "measured" for candidate in table["candidates"])
