"""Workers over ssh, with a program in ssh's place that runs everything here: what is sent, what is quoted, what is said."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from essm_deploy.errors import ConnectionLost, UnavailableError
from essm_deploy.files import staging
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Target
from essm_deploy.targets.local import LocalLauncher
from essm_deploy.targets.reach import device_here, launcher_for
from essm_deploy.targets.runner import runner_files
from essm_deploy.targets.ssh import SshLauncher
from essm_deploy.targets.ssh_connection import Connection, remote_command
from tests.runtime.tiny import engine_entry, write_bundle
from tests.targets.fake_ssh import FakeSsh, make_fake_ssh
from tests.test_layers import DEVICE

ENGINE = Engine.from_json(engine_entry("k8"))
QUICK = Settings(min_samples=20, min_seconds=0.01, max_seconds=2.0, warmup_seconds=0.1, threads=1)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    return make_fake_ssh(tmp_path / "a device", monkeypatch)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def launcher(device: FakeSsh, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[SshLauncher]:
    monkeypatch.setattr("essm_deploy.targets.ssh_store._WORTH_SAYING_BYTES", 0)
    launcher = SshLauncher(device.reach(), said.append)
    yield launcher
    launcher.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


def stored(device: FakeSsh) -> dict[str, Path]:
    """The content that the device holds, by sha256."""
    return {path.name: path for path in (device.home / ".cache/essm-deploy/files").iterdir()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_engine_is_measured_by_the_runner_that_was_sent(
    launcher: SshLauncher, device: FakeSsh, bundle: Path, said: list[str]
) -> None:
    result = measure_engine(launcher, bundle, ENGINE, QUICK, budget=8)
    assert result.latency.samples >= 20
    assert result.environment["provider"] == "CPUExecutionProvider"
    assert device.log == ["connection pi@kitchen", "session pi@kitchen"]
    assert [line.split()[0] for line in said] == ["sending", "sending"]  # the runner, the engine


def test_what_is_there_is_not_sent_again_and_what_is_damaged_is(
    launcher: SshLauncher, device: FakeSsh, bundle: Path, said: list[str]
) -> None:
    root = Path(launcher.place(bundle, ENGINE))
    assert all((root / name).read_bytes() == (bundle / name).read_bytes() for name in ENGINE.files)
    before = {name: path.stat().st_ino for name, path in stored(device).items()}
    launcher.close()
    said.clear()

    assert Path(launcher.place(bundle, ENGINE)) == root
    assert said == []
    assert {name: path.stat().st_ino for name, path in stored(device).items()} == before
    launcher.close()

    weights = stored(device)[sha256(bundle / "graphs/weights.bin")]
    weights.chmod(0o600)
    weights.write_bytes(bytes(weights.stat().st_size))  # the right size, other bytes: a hard link shows them in the root
    assert Path(launcher.place(bundle, ENGINE)) == root
    assert [line.split(",")[0] for line in said] == ["sending 1 file(s)"]
    assert (root / "graphs/weights.bin").read_bytes() == (bundle / "graphs/weights.bin").read_bytes()


def test_a_file_that_changes_is_another_file(launcher: SshLauncher, bundle: Path) -> None:
    first = launcher.place(bundle, ENGINE)
    changed = bundle / "graphs/weights.bin"
    changed.write_bytes(bytes(changed.stat().st_size))
    second = launcher.place(bundle, ENGINE)
    assert first != second
    assert (Path(second) / "graphs/weights.bin").read_bytes() == changed.read_bytes()
    assert (Path(first) / "graphs/weights.bin").read_bytes() != changed.read_bytes()


def test_our_files_there_are_for_nobody_elses_eyes(launcher: SshLauncher, device: FakeSsh, bundle: Path) -> None:
    launcher.place(bundle, ENGINE)
    ours = device.home / ".cache/essm-deploy"
    assert [path for path in [ours, *ours.rglob("*")] if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("name", ["a 'b' \"c\" * $HOME", "$(touch hit); `touch hit` & touch hit | touch hit"])
def test_names_of_the_user_are_never_read_by_a_shell(
    device: FakeSsh, bundle: Path, said: list[str], name: str, tmp_path: Path
) -> None:
    (device.home / name).mkdir()
    (device.home / name / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (device.home / name / "python").chmod(0o755)
    launcher = SshLauncher(device.reach(python=f"~/{name}/python", directory=f"~/{name}/ours"), said.append)
    try:
        root = Path(launcher.place(bundle, ENGINE))
    finally:
        launcher.close()
    assert root.parents[1] == device.home / name / "ours"
    assert [*tmp_path.rglob("hit")] == []


def test_every_word_of_a_command_is_one_word_for_the_shell_there() -> None:
    words = ["a b", "it's", "$HOME", "!!", "", "-x", "\n"]
    command = remote_command("~/my python", *words)
    shown = subprocess.run(
        ["sh", "-c", command.replace("exec", "exec printf '%s\\0'", 1)],
        capture_output=True,
        text=True,
        env={"HOME": "/the home"},
        check=True,
    )
    assert shown.stdout.split("\0")[:-1] == ["/the home/my python", *words]


def test_a_lost_connection_is_made_again_once_with_one_line(
    launcher: SshLauncher, device: FakeSsh, bundle: Path, said: list[str]
) -> None:
    launcher.place(bundle, ENGINE)
    said.clear()
    assert launcher._device is not None
    launcher._device.store._process.kill()  # between two requests
    launcher.place(bundle, ENGINE)
    assert device.log.count("connection pi@kitchen") == 2

    process = launcher._device.store._process  # in the middle of one
    ask = launcher._device.store.ask

    def cut(*args: object, **fields: object) -> object:
        process.kill()
        return ask(*args, **fields)  # type: ignore[arg-type]

    launcher._device.store.ask = cut  # type: ignore[method-assign, assignment]
    launcher.place(bundle, ENGINE)
    assert said == ["the connection to pi@kitchen was lost; connecting again"] * 2

    (device.folder / "refuse").write_text("ssh: connect to host kitchen port 22: No route to host\n")
    launcher._device.store._process.kill()
    with pytest.raises(UnavailableError, match=r"does not answer.*the same command resumes"):
        launcher.place(bundle, ENGINE)


class Cut(subprocess.Popen[str]):
    """A session that ends as if its connection had been lost."""

    def cause(self) -> ConnectionLost:
        return ConnectionLost("the connection was lost")


@pytest.mark.parametrize("times", [1, 2])
def test_a_measurement_whose_connection_is_lost_is_made_once_more(bundle: Path, times: int) -> None:
    pipe, left = subprocess.PIPE, [Cut] * times

    class Launcher(LocalLauncher):
        def start(self) -> subprocess.Popen[str]:
            return left.pop()(["false"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) if left else super().start()

    if times == 2:
        with pytest.raises(ConnectionLost):
            measure_engine(Launcher(), bundle, ENGINE, QUICK, budget=8)
    else:
        assert measure_engine(Launcher(), bundle, ENGINE, QUICK, budget=8).latency.samples >= 20
    assert left == []


def test_nothing_is_connected_before_it_is_needed_and_nothing_is_left_behind(
    device: FakeSsh, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path(tempfile.mkdtemp(prefix="e"))  # pytest's own is too long for a socket
    monkeypatch.setattr("tempfile.tempdir", str(short))
    launcher = SshLauncher(device.reach(), lambda line: None)
    launcher.close()
    assert device.log == []
    launcher.place(bundle, ENGINE)
    (folder,) = short.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert launcher._device is not None
    first = launcher._device.store._process
    launcher.close()
    assert first.poll() is not None
    short.rmdir()  # only what is empty can be


def test_a_path_too_long_for_a_socket_is_not_taken(device: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    connection = Connection(device.reach())
    connection.open("true")
    assert connection._folder is not None
    assert len(str(connection._folder)) < 80
    connection.close()


def test_the_sockets_folder_is_held_while_the_connection_stands(
    device: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("essm_deploy.targets.ssh_connection._LONGEST_SOCKET", 1000)
    connection = Connection(device.reach())
    connection.open("cat")
    with staging(tmp_path) as other:
        assert connection._folder is not None
        assert {*tmp_path.glob("essm-deploy-*")} == {connection._folder, other}
    connection.close()
    assert [*tmp_path.glob("essm-deploy-*")] == []


def test_the_user_is_never_asked_and_the_host_key_is_always_checked(
    device: FakeSsh, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    program = device.folder / "bin" / "ssh"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{device.folder}/words'\nexit 255\n")
    with pytest.raises(UnavailableError):
        SshLauncher(device.reach(port=2222), lambda line: None).place(bundle, ENGINE)
    words = (device.folder / "words").read_text().splitlines()
    assert "-oBatchMode=yes" in words
    assert not [word for word in words if "HostKey" in word or "KnownHosts" in word or word.startswith("-F")]
    assert words[-3:-1] == ["--", "pi@kitchen"]
    assert words[words.index("-p") + 1] == "2222"


def test_a_worker_ends_when_nobody_listens_any_more(launcher: SshLauncher) -> None:
    with launcher.start() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert '"hello"' in process.stdout.readline()
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_worker_that_does_not_look_at_its_stdin_is_ended_all_the_same(launcher: SshLauncher) -> None:
    with launcher.start() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        worker = int(process.stdout.readline().partition('"pid": ')[2].partition(",")[0])
        os.kill(worker, signal.SIGSTOP)
        start = time.monotonic()
        for pipe in (process.stdout, process.stderr, process.stdin):  # as when the connection is cut: nobody reads complaints
            pipe.close()
        assert process.wait(20) == 128 + signal.SIGKILL
    assert time.monotonic() - start > 1  # it was given time to end by itself
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_a_second_worker_is_refused_while_one_measures(launcher: SshLauncher, bundle: Path) -> None:
    launcher.wait_s = 0.1
    first = launcher.start()
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(UnavailableError, match="another essm-deploy is measuring"):
        measure_engine(launcher, bundle, ENGINE, QUICK, budget=8)
    first.communicate("")


def test_the_environment_of_the_worker_is_not_the_login_shells(
    launcher: SshLauncher, monkeypatch: pytest.MonkeyPatch, device: FakeSsh
) -> None:
    (device.home / "numpy.py").write_text("raise SystemExit('shadowed')")
    (device.home / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    process = launcher.start()
    assert process.stdout is not None
    worker = int(process.stdout.readline().partition('"pid": ')[2].partition(",")[0])
    environment = Path(f"/proc/{worker}/environ").read_bytes()
    process.communicate("")
    assert b"OMP_NUM_THREADS" not in environment
    assert b"HOME=" in environment


def test_the_runner_is_all_that_the_worker_imports(tmp_path: Path) -> None:
    assert {name.split("/")[1].removesuffix(".py") for name in runner_files()} == {*DEVICE, "__init__"}
    for name, path in runner_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(path.read_bytes())
    program = (
        "import sys, essm_deploy.runtime.worker; print(*{m.__file__ for n, m in sys.modules.items() if n.startswith('essm')})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(file.startswith(str(tmp_path)) for file in done.stdout.split())


def test_an_ssh_target_is_measured_and_not_estimated(device: FakeSsh) -> None:
    target = Target(
        name="pi", description="a pi", kind="cpu", backends=["onnxruntime"], precision=["fp32"], reach=device.reach()
    )
    assert device_here(target)
    found = launcher_for(target)
    assert found.remote
    assert isinstance(found, SshLauncher)
    assert device.log == []
