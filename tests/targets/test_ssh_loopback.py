"""A second user of this machine, with its own virtual environment, reached through a real sshd on loopback.

tests/targets/loopback.py makes it; without it these tests are skipped by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.errors import UnavailableError, WorkerError
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.remote import run_engine
from essm_deploy.profiling.verdict import Measurement
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Reach
from essm_deploy.targets.ssh import SshLauncher
from tests.runtime import tiny
from tests.targets.loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.ssh]

ENGINE = Engine.from_json(tiny.engine_entry("k8"))
QUICK = Settings(min_samples=20, min_seconds=0.01, max_seconds=2.0, warmup_seconds=0.1, threads=1)
LONG = Settings(min_samples=20, min_seconds=4.0, max_seconds=6.0, warmup_seconds=0.1, threads=1)
WORKER = "essm_deploy.runtime.worker"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Loopback:
    found = Loopback(Path(os.environ["ESSM_SSH_LOOPBACK"]))
    monkeypatch.setenv("PATH", f"{found.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def connect(device: Loopback, said: list[str]) -> Iterator[Callable[..., SshLauncher]]:
    """A launcher for a host of the configuration; `keys` are of [reach]."""
    made: list[SshLauncher] = []

    def connect(host: str = "device", **keys: Any) -> SshLauncher:
        made.append(SshLauncher(Reach(**{"via": "ssh", "host": host, "python": device.python, **keys}), said.append))
        return made[-1]

    yield connect
    for launcher in made:
        launcher.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tiny.write_bundle(tmp_path / "bundle")


@pytest.fixture
def target(device: Loopback, tmp_path: Path) -> Path:
    path = tmp_path / "device.toml"
    path.write_text(
        'name = "other-user"\ndescription = "the second user"\nkind = "cpu"\nbackends = ["onnxruntime"]\nprecision = ["fp32"]\n'
        f'[reach]\nvia = "ssh"\nhost = "device"\npython = "{device.python}"\n'
    )
    return path


@contextlib.contextmanager
def nobody_accepted(device: Loopback) -> Iterator[None]:
    """The device refuses everybody for a while, as if it had not come back."""
    keys, hidden = device.folder / "authorized_keys", device.folder / "hidden_keys"
    keys.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(keys)


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def cut(device: Loopback) -> None:
    """End the server's side of every connection, as a cable that is pulled would in the end."""
    for pid in device.sessions():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cut_while_measuring(device: Loopback) -> threading.Thread:
    def cutting() -> None:
        wait_for(lambda: device.processes(WORKER))
        time.sleep(1.5)  # into the samples
        cut(device)

    thread = threading.Thread(target=cutting)
    thread.start()
    return thread


def essm(*words: object, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "essm_deploy.cli", *map(str, words)]
    environment = {**os.environ, "ESSM_CACHE": str(cache)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def document(*words: object, cache: Path) -> tuple[int, dict[str, Any], str]:
    process = essm(*words, "--format", "json", cache=cache)
    out, err = process.communicate(timeout=280)
    return process.returncode, json.loads(out) if out else {}, err


def test_an_engine_is_measured_as_the_other_user_over_one_connection(
    connect: Callable[..., SshLauncher], device: Loopback, bundle: Path
) -> None:
    launcher = connect()
    seen: list[int] = []

    def watch() -> None:
        wait_for(lambda: device.processes(WORKER))
        seen.append(len(device.sessions()))

    thread = threading.Thread(target=watch)
    thread.start()
    result = measure_engine(launcher, bundle, ENGINE, LONG, budget=8)
    thread.join()
    theirs = subprocess.run([device.python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert result.environment["versions"]["python"] == theirs
    assert seen == [1]
    assert not (device.home / ".cache/essm-deploy").stat().st_mode & 0o077


def test_the_outputs_computed_there_are_those_computed_here(connect: Callable[..., SshLauncher], bundle: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    inputs = {
        "features": rng.standard_normal((3, tiny.LENGTH, tiny.WIDTH)).astype("f4"),
        "lengths": np.array([1, 3, 6], dtype=np.int64),
    }
    outputs = run_engine(connect(), bundle, ENGINE, inputs)
    np.testing.assert_allclose(outputs["logits"], tiny.expected(**inputs), rtol=1e-5, atol=1e-6)  # float32 sums of six


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("wrong-key", "ssh-copy-id wrong-key"),
        ("unknown-key", "compare the fingerprint"),
        ("changed-key", "ssh-keygen -R"),
        ("refused", "nothing listens for ssh"),
        ("no-such-host.invalid", "no such host is known"),
    ],
)
def test_a_device_that_cannot_be_reached_says_why(
    connect: Callable[..., SshLauncher], device: Loopback, bundle: Path, host: str, message: str
) -> None:
    with pytest.raises(UnavailableError, match=message) as caught:
        connect(host).place(bundle, ENGINE)
    assert "\n" not in str(caught.value)
    assert (device.folder / "unknown").read_text() == ""  # nothing was taken on trust


def test_a_port_that_never_greets_is_given_up(connect: Callable[..., SshLauncher], bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        launcher = connect("device", port=silent.getsockname()[1], connect_timeout_s=1)
        with pytest.raises(UnavailableError, match="does not answer"):
            launcher.place(bundle, ENGINE)


def test_an_environment_without_the_packages_is_told_what_to_install(
    connect: Callable[..., SshLauncher], device: Loopback, bundle: Path
) -> None:
    bare = str(device.home / "bare/bin/python")
    with pytest.raises(UnavailableError, match=f"numpy is not installed: run `{bare} -m pip install numpy onnxruntime` there"):
        connect(python=bare).place(bundle, ENGINE)


def test_login_files_that_print_are_named(connect: Callable[..., SshLauncher], device: Loopback, bundle: Path) -> None:
    login = device.home / ".bashrc"
    before = login.read_text() if login.exists() else ""
    login.write_text("echo Welcome to the loopback\n")
    try:
        with pytest.raises(WorkerError, match=r"answered 'Welcome to the loopback'.*bashrc"):
            connect().place(bundle, ENGINE)
    finally:
        login.write_text(before)


def test_a_full_disk_is_told_before_it_is_full_and_nothing_stays_on_it(
    connect: Callable[..., SshLauncher], device: Loopback, bundle: Path, tmp_path: Path
) -> None:
    if device.small is None:
        pytest.skip("a small disk could not be mounted")
    directory = device.small / tmp_path.name
    launcher = connect(directory=str(directory))
    launcher.place(bundle, ENGINE)
    weights = bundle / "graphs/weights.bin"
    weights.write_bytes(bytes(4 << 20))
    with pytest.raises(UnavailableError, match=r"the disk of device is full: .*free some space") as caught:
        launcher.place(bundle, ENGINE)
    assert "\n" not in str(caught.value)
    assert [*(directory / "incoming").iterdir()] == []

    filler = device.small / "filler"
    weights.write_bytes(b"x" * (1 << 20))
    filler.write_bytes(bytes(shutil.disk_usage(device.small).free - (1 << 20)))
    with pytest.raises(UnavailableError, match="is full"):
        launcher.place(bundle, ENGINE)
    filler.unlink()
    assert (Path(launcher.place(bundle, ENGINE)) / "graphs/weights.bin").stat().st_size == 1 << 20
    launcher.close()
    shutil.rmtree(directory)


def test_a_connection_that_is_cut_is_made_again_and_the_engine_measured_again(
    connect: Callable[..., SshLauncher], device: Loopback, bundle: Path, said: list[str]
) -> None:
    launcher = connect()
    thread = cut_while_measuring(device)
    result = measure_engine(launcher, bundle, ENGINE, LONG, budget=8)
    thread.join()
    assert result.latency.samples >= 20
    assert [line for line in said if line.endswith("connecting again")] != []
    assert all("\n" not in line for line in said)


def test_no_worker_outlives_its_connection(connect: Callable[..., SshLauncher], device: Loopback, bundle: Path) -> None:
    endless = Settings(min_samples=10**6, min_seconds=500.0, max_seconds=1000.0, warmup_seconds=0.1)
    launcher = connect()
    failures: list[BaseException] = []

    def measure() -> Measurement | None:
        try:
            return measure_engine(launcher, bundle, ENGINE, endless, budget=8)
        except Exception as error:
            failures.append(error)
            return None

    thread = threading.Thread(target=measure)
    thread.start()
    wait_for(lambda: device.processes(WORKER))
    time.sleep(1)
    with nobody_accepted(device):
        cut(device)
        thread.join()
        wait_for(lambda: not device.processes(), 15)
    assert isinstance(failures[0], UnavailableError)


def test_a_killed_command_leaves_nothing_running_on_the_device(
    device: Loopback, target: Path, keywords: Path, tmp_path: Path
) -> None:
    process = essm("profile", keywords, "--target", target, "--max-latency", "1s", cache=tmp_path / "cache")
    wait_for(lambda: device.processes(WORKER), 60)
    process.kill()
    process.communicate()
    wait_for(lambda: not device.processes(WORKER), 15)


def test_ctrl_c_ends_the_worker_and_the_connection(device: Loopback, target: Path, keywords: Path, tmp_path: Path) -> None:
    process = essm("profile", keywords, "--target", target, "--max-latency", "1s", cache=tmp_path / "cache")
    wait_for(lambda: device.processes(WORKER), 60)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    wait_for(lambda: not device.processes(), 15)


def test_a_sweep_whose_connection_is_cut_for_good_resumes(
    device: Loopback, target: Path, keywords: Path, tmp_path: Path
) -> None:
    words = ("profile", keywords, "--target", target, "--all-K")
    cache = tmp_path / "cache"
    process = essm(*words, cache=cache)
    wait_for(lambda: [*cache.glob("sweeps/*/observations.jsonl")], 120)
    wait_for(lambda: device.processes(WORKER), 60)
    with nobody_accepted(device):
        cut(device)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert err.splitlines()[-1].startswith("error: ")
    assert "it refuses our key" in err.splitlines()[-1]
    assert err.splitlines()[-1].endswith("the same command resumes")
    assert "connecting again" in err

    code, found, err = document(*words, cache=cache)
    assert code == 0, err
    assert "measured before the interruption" in err
    assert len(found["candidates"]) == 3


@pytest.mark.timeout(900)  # four sweeps, each with its second looks on a machine that is busy
def test_the_verdicts_over_ssh_are_those_of_this_machine(target: Path, shipped: Path, tmp_path: Path) -> None:
    found = {}
    for name in ("cpu", str(target)):
        for limit in ("10s", "1us"):
            code, answer, err = document(
                "profile", shipped, "--target", name, "--max-latency", limit, cache=tmp_path / f"cache-{limit}"
            )
            assert code == {"10s": 0, "1us": 1}[limit], err
            found[name == "cpu", limit] = answer
    for limit in ("10s", "1us"):
        here, there = found[True, limit], found[False, limit]
        assert (here["status"], here["budget"]) == (there["status"], there["budget"])
        assert [c["budget"] for c in here["candidates"]] == [c["budget"] for c in there["candidates"]]
    here, there = found[True, "10s"]["latency_ms"]["p50"], found[False, "10s"]["latency_ms"]["p50"]
    # The same machine and library; the factor is what other work on it may do to one of the two.
    assert 0.4 < there / here < 2.5


def test_a_build_for_the_device_ends_in_a_bundle(device: Loopback, target: Path, keywords: Path, tmp_path: Path) -> None:
    words = ("build", keywords, "--target", target, "--max-latency", "5s", "-o", tmp_path / "out")
    code, answer, err = document(*words, cache=tmp_path / "cache")
    assert code == 0, err
    assert (answer["status"], answer["budget"], answer["target"]) == ("ok", 8, "other-user")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    profiles = [engine["profile"] for engine in manifest["engines"] if engine["profile"]]
    environments = [profile["environment"] for profile in profiles if "environment" in profile]
    assert environments
    assert all("host" not in environment for environment in environments)
    code, _, err = document("doctor", "--target", target, "--clean", cache=tmp_path / "cache")
    assert code == 0, err
    assert not (device.home / ".cache/essm-deploy").exists()


def test_doctor_finds_the_device_ready(target: Path, device: Loopback, tmp_path: Path) -> None:
    code, report, err = document("doctor", "--target", target, cache=tmp_path / "cache")
    assert code == 0, err
    assert report["ready"]
    found = {check["what"]: check["found"] for check in report["checks"]}
    assert device.python in found["python"]
    assert found["ssh"] == "device accepts us"
