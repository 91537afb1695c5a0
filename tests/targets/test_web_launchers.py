"""What is missing is named with what to do about it; a worker in Node speaks the protocol, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy.errors import (
    BuildError,
    BundleError,
    EssmError,
    InputError,
    IntegrityError,
    TargetError,
    UnavailableError,
    WorkerError,
)
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.remote import run_engine
from essm_deploy.profiling.worker_process import Conversation, conversation
from essm_deploy.runtime import host
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets import web_runtime
from essm_deploy.targets.browser_process import find_chromium
from essm_deploy.targets.chromium import ChromiumLauncher
from essm_deploy.targets.description import find_target, read_target
from essm_deploy.targets.node import NodeLauncher
from essm_deploy.targets.reach import device_here, launcher_for
from essm_deploy.targets.web_runtime import PACKAGE, TESTED, find_package
from tests.targets.web import fake_engine, fake_package

QUICK = Settings(min_samples=20, min_seconds=0.05, max_seconds=2.0, warmup_seconds=0.3)


@pytest.fixture
def launcher(tmp_path: Path, node: str) -> NodeLauncher:
    """Node on a module that only looks like onnxruntime-web."""
    return NodeLauncher(str(fake_package(tmp_path / "node_modules")))


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Node, npm, Chromium and a variable that leads to them: an empty folder is all there is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("ESSM_NODE_MODULES", "ESSM_CHROMIUM"):
        monkeypatch.delenv(variable, raising=False)
    web_runtime._global_modules.cache_clear()
    monkeypatch.setattr(web_runtime, "_global_modules", lambda: "")
    return tmp_path


def test_without_node_the_error_says_what_to_install(nothing: Path) -> None:
    with pytest.raises(UnavailableError, match="node is not on the PATH") as caught:
        NodeLauncher().start()
    assert caught.value.exit_code == 3
    assert f"npm install {PACKAGE}@{TESTED}" in str(caught.value)


def test_without_the_package_the_error_is_the_npm_line(nothing: Path) -> None:
    with pytest.raises(UnavailableError, match=f"npm install {PACKAGE}@{TESTED}"):
        find_package()


def test_a_stated_folder_without_the_package_is_named(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"node_modules of the target is .*npm install"):
        find_package(str(nothing))
    monkeypatch.setenv("ESSM_NODE_MODULES", str(nothing))
    with pytest.raises(UnavailableError, match=r"\$ESSM_NODE_MODULES is .*npm install"):
        find_package()


def test_what_the_target_states_goes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = fake_package(tmp_path / "one"), fake_package(tmp_path / "other")
    monkeypatch.setenv("ESSM_NODE_MODULES", str(one))
    assert find_package() == one / PACKAGE
    assert find_package(str(other)) == other / PACKAGE


def test_without_chromium_the_error_says_what_to_install(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="apt-get install chromium") as caught:
        ChromiumLauncher(node_modules=str(nothing)).start()
    assert caught.value.exit_code == 3
    monkeypatch.setenv("ESSM_CHROMIUM", "/opt/no/browser")
    with pytest.raises(UnavailableError, match="there is no /opt/no/browser"):
        find_chromium()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which everything seems to be there; returns the folder of its programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("node", "chromium"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("ESSM_CHROMIUM", raising=False)
    monkeypatch.setenv("ESSM_NODE_MODULES", str(fake_package(tmp_path / "node_modules")))
    return programs


def test_what_a_target_lacks_is_said_before_anything_is_built(installed: Path) -> None:
    (installed / "node").unlink()
    with pytest.raises(UnavailableError, match="node is not on the PATH"):
        launcher_for(find_target("web-wasm-node"))
    (installed / "chromium").unlink()
    with pytest.raises(UnavailableError, match="Chromium is not here"):
        launcher_for(find_target("web-wasm"))


def test_the_shipped_targets_lead_to_a_browser_and_to_node(installed: Path) -> None:
    assert isinstance(launcher_for(find_target("web-wasm")), ChromiumLauncher)
    assert isinstance(launcher_for(find_target("web-wasm-node")), NodeLauncher)
    assert all(launcher_for(find_target(name)).remote for name in ("web-wasm", "web-wasm-node"))
    assert device_here(find_target("web-wasm"))


def test_a_targets_own_keys_reach_the_launcher(installed: Path, tmp_path: Path) -> None:
    modules, browser = tmp_path / "node_modules", installed / "chromium"
    text = 'name = "mine"\ndescription = "d"\nkind = "cpu"\nbackends = ["onnxruntime"]\nprecision = ["fp32"]\n[reach]\n'
    path = tmp_path / "mine.toml"
    path.write_text(text + f'via = "chromium"\nnode_modules = "{modules}"\nbrowser = "{browser}"\n')
    assert launcher_for(read_target(path)) == ChromiumLauncher(str(browser), str(modules))
    path.write_text(text + f'via = "node"\nnode_modules = "{modules}"\n')
    assert launcher_for(read_target(path)) == NodeLauncher(str(modules))
    path.write_text(text + 'via = "node"\nbrowser = "/b"\n')
    with pytest.raises(TargetError, match="'browser' does not belong to via = 'node'"):
        read_target(path)


def test_node_measures_as_every_worker_does(tmp_path: Path, launcher: NodeLauncher) -> None:
    engine = fake_engine(tmp_path, milliseconds=2.0)
    found = measure_engine(launcher, tmp_path, engine, QUICK, budget=2)
    assert len(found.samples_ms) >= 20
    assert min(found.samples_ms) >= 2.0
    assert found.environment["provider"] == "wasm"
    assert found.environment["threads"] == host.physical_cores()
    assert {"essm_deploy", "node", "v8", "onnxruntime_web"} == set(found.environment["versions"])
    assert found.environment["machine"] == host.describe()
    memory = found.memory
    assert memory.baseline_bytes is not None
    assert memory.peak_bytes is not None
    assert 20 * 2**20 < memory.baseline_bytes <= memory.peak_bytes < 2 * 2**30
    assert found.waited_share is not None
    assert memory.device_bytes is None
    assert "no GPU" in memory.reasons["device_bytes"]


def test_node_answers_rows(tmp_path: Path, launcher: NodeLauncher) -> None:
    features = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    lengths = np.array([3, 2])
    found = run_engine(launcher, tmp_path, fake_engine(tmp_path), {"features": features, "lengths": lengths})
    np.testing.assert_array_equal(found["logits"], [[15 + 3] * 2, [51 + 2] * 2])
    found = run_engine(launcher, tmp_path, fake_engine(tmp_path), {"features": features[:, :2]}, threads=1)
    np.testing.assert_array_equal(found["logits"], [[6 + 2] * 2, [30 + 2] * 2])


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"files": ["gone.onnx"]}, IntegrityError, "lacks the file 'gone.onnx'"),
        ({"requires": {"onnxruntime": ">=9"}}, UnavailableError, "needs onnxruntime >=9, onnxruntime-web here is 1.30.0"),
        ({"backend": "tensorrt"}, UnavailableError, "needs the backend tensorrt"),
        ({"kind": "anchor"}, UnavailableError, "is of kind anchor"),
        ({"graph": "refuse me"}, BuildError, "cannot open k2.onnx: refused, as asked"),
        ({"outputs": [{"name": "logits", "dtype": "float32", "shape": [1, 7]}]}, BundleError, "the manifest says logits"),
        ({"inputs": [{"name": "features", "dtype": "float32", "shape": [1, 3, 2]}]}, BundleError, "has the inputs"),
    ],
)
def test_an_error_in_node_is_the_error_here(
    changes: dict[str, Any], kind: type[EssmError], said: str, tmp_path: Path, launcher: NodeLauncher
) -> None:
    engine = fake_engine(tmp_path, **changes)
    with pytest.raises(kind) as caught:
        measure_engine(launcher, tmp_path, engine, QUICK, budget=2)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_input_that_does_not_fit_is_an_input_error(tmp_path: Path, launcher: NodeLauncher) -> None:
    engine = fake_engine(tmp_path)
    with pytest.raises(InputError, match="the input has 4 steps, engine 'k2-sequence' takes at most 3"):
        run_engine(launcher, tmp_path, engine, {"features": np.zeros((1, 4, 2), np.float32)})
    with pytest.raises(InputError, match="'features' has the shape"):
        run_engine(launcher, tmp_path, engine, {"features": np.zeros((1, 3, 5), np.float32)})


def test_a_request_that_is_none_is_refused(tmp_path: Path, launcher: NodeLauncher) -> None:
    with conversation(launcher) as talk:
        talk.receive("hello", 30.0)
        talk.send({"op": "dance", "root": "/", "engine": fake_engine(tmp_path).to_json()})
        with pytest.raises(BundleError, match='op is "dance", expected measure or run'):
            talk.receive("loaded", 30.0)


def test_a_worker_that_is_asked_nothing_ends(launcher: NodeLauncher) -> None:
    with conversation(launcher) as talk:
        talk.receive("hello", 30.0)
        assert talk.process.stdin is not None
        talk.process.stdin.close()
        assert talk.process.wait(timeout=30) == 0


def long_request(root: Path, engine: Engine) -> dict[str, Any]:
    """A measurement of a minute."""
    warmup = {"max_seconds": 0.1, "window": 5, "tolerance": 0.5}
    plan = {"min_samples": 100_000, "min_seconds": 1.0, "max_seconds": 60.0, "support": None, "pace_ms": None}
    asked = {"op": "measure", "root": str(root), "engine": engine.to_json(), "threads": 1}
    return asked | {"batch": 1, "length": None, "seed": 0, "warmup": warmup, **plan}


def drain(talk: Conversation) -> None:
    """Take samples for as long as there are any."""
    while True:
        talk.receive("samples", 30.0)


@pytest.mark.parametrize("how", ["kill", "node"])
def test_nothing_is_left_of_a_worker_that_is_killed(how: str, tmp_path: Path, launcher: NodeLauncher) -> None:
    engine = fake_engine(tmp_path, milliseconds=5.0)
    with conversation(launcher) as talk:
        worker = talk.receive("hello", 30.0)["pid"]
        talk.send(long_request(tmp_path, engine))
        for event in ("loaded", "warm", "samples"):
            talk.receive(event, 30.0)
        if how == "kill":
            talk.process.kill()
        else:
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(WorkerError, match="node ended with status -9"):
                drain(talk)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists()


def test_the_worker_of_a_bridge_that_dies_ends_too(tmp_path: Path, launcher: NodeLauncher) -> None:
    engine = fake_engine(tmp_path, milliseconds=5.0)
    process = launcher.start()
    assert process.stdin is not None
    assert process.stdout is not None
    worker = json.loads(process.stdout.readline())["pid"]
    process.stdin.write(json.dumps(long_request(tmp_path, engine)) + "\n")
    process.stdin.flush()
    process.stdout.readline()
    subprocess.Popen.kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    deadline = time.monotonic() + 20
    while running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(worker)


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
