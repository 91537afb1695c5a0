"""What is said when a device over ssh cannot be used: one line, with what to do."""

from __future__ import annotations

import shlex
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from essm_deploy.errors import ConnectionLost, EssmError, UnavailableError, WorkerError
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Reach
from essm_deploy.targets.ssh import SshLauncher
from essm_deploy.targets.ssh_errors import interpreter_refusal, lost, refusal
from tests.runtime.tiny import engine_entry, write_bundle
from tests.targets.fake_ssh import FakeSsh, make_fake_ssh

ENGINE = Engine.from_json(engine_entry("k8"))


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    return make_fake_ssh(tmp_path / "a device", monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("login", "python", "message"),
    [
        ("Welcome to the kitchen\n", sys.executable, "answered 'Welcome to the kitchen'.*login files"),
        ("", "/nonexistent/python3", "'/nonexistent/python3' is not there"),
        ("", "no-such-python", "'no-such-python' is not there"),
        ("", "/etc/passwd", "cannot be executed"),
        ("", "~/old", r"is Python 3\.8, expected 3\.10 or newer"),
        ("", "~/two", r"is Python 2, expected 3\.10 or newer"),
        ("", "~/bare/bin/python", "pi@kitchen: numpy is not installed: run `.+ -m pip install numpy onnxruntime` there"),
        ("", "~/broken", "status 3: it is broken"),
    ],
)
def test_an_interpreter_that_will_not_do_is_named_with_what_to_do(
    device: FakeSsh, bundle: Path, login: str, python: str, message: str
) -> None:
    (device.folder / "login").write_text(login)
    real = shlex.quote(sys.executable)
    old = f"""exec {real} -I -c "import sys;sys.version_info=(3, 8, 10, 'final', 0)\n$3" "$4" """
    programs = {
        "old": old,
        "two": "echo 'Unknown option: -I' >&2; exit 2",
        "broken": "echo it is broken >&2; exit 3",
    }
    for name, text in programs.items():
        (device.home / name).write_text(f"#!/bin/sh\n{text}\n")
        (device.home / name).chmod(0o755)
    if python.startswith("~/bare"):
        venv.create(device.home / "bare")
    launcher = SshLauncher(device.reach(python=python), lambda line: None)
    with pytest.raises((UnavailableError, WorkerError), match=message) as caught:
        launcher.place(bundle, ENGINE)
    launcher.close()
    assert "\n" not in str(caught.value)


REFUSALS = [
    ("ssh: Could not resolve hostname kitchen: Name or service not known", "no such host is known"),
    ("ssh: connect to host kitchen port 22: Connection refused", "nothing listens for ssh"),
    ("ssh: connect to host kitchen port 22: No route to host", "does not answer"),
    ("ssh: connect to host kitchen port 22: Connection timed out", "does not answer"),
    ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "ssh-keygen -R"),
    ("No ED25519 host key is known for kitchen and you have requested strict checking.", "compare the fingerprint"),
    ("Host key verification failed.", "compare the fingerprint"),
    ("pi@kitchen: Permission denied (publickey,password).", "ssh-copy-id -p 2222 pi@kitchen"),
    ("kex_exchange_identification: Connection closed by remote host", "is that port sshd's"),
    ("command-line: line 0: Bad configuration option: frobnicate", "Bad configuration option: frobnicate; try it by hand"),
    ("", "nothing was said"),
]


@pytest.mark.parametrize(("said", "advice"), REFUSALS)
def test_a_refused_connection_says_what_to_do(device: FakeSsh, bundle: Path, said: str, advice: str) -> None:
    (device.folder / "refuse").write_text(said + "\n")
    launcher = SshLauncher(device.reach(port=2222), lambda line: None)
    with pytest.raises(UnavailableError, match=advice) as caught:
        launcher.place(bundle, ENGINE)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, ConnectionLost)


def test_a_host_that_hangs_is_given_up(device: FakeSsh, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (device.folder / "bin" / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("essm_deploy.targets.ssh_store._ANSWER_SECONDS", 1.0)
    launcher = SshLauncher(device.reach(connect_timeout_s=1), lambda line: None)
    with pytest.raises(UnavailableError, match="silent for 4 s"):
        launcher.place(bundle, ENGINE)


def test_without_ssh_the_package_is_named(monkeypatch: pytest.MonkeyPatch, bundle: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    short = Path(tempfile.mkdtemp(prefix="e"))
    monkeypatch.setattr("tempfile.tempdir", str(short))
    with pytest.raises(UnavailableError, match="openssh-client"):
        SshLauncher(Reach(via="ssh", host="pi@kitchen"), lambda line: None).place(bundle, ENGINE)
    short.rmdir()  # only what is empty can be


def test_errors_name_the_host_and_no_control_characters() -> None:
    reach = Reach(via="ssh", host="pi@kitchen")
    errors: list[EssmError | None] = [
        refusal(reach, "a\x1b[31m\x07red thing"),
        lost(reach, "gone\r\x1b[2J"),
        interpreter_refusal(reach, 1, "a\x00\x1bb"),
    ]
    assert all(error is not None and "kitchen" in str(error) and str(error).isprintable() for error in errors)
    assert interpreter_refusal(reach, 255, "python3: not found") is None
