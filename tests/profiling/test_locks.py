"""One sweep at a time on a device."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.locks import THIS_MACHINE, device_of, hold_devices, locks_directory
from essm_deploy.targets.description import Reach, find_target

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from essm_deploy.profiling.locks import hold_devices
with hold_devices([sys.argv[1]], print, wait="--wait" in sys.argv):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSM_LOCKS", str(tmp_path / "locks"))


def holder(device: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", HOLD, device, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=30)
    return process.returncode


def test_the_second_sweep_learns_who_holds_the_device_and_since_when() -> None:
    first = holder("jetson")
    assert line_of(first) == "held"
    with pytest.raises(UnavailableError) as caught, hold_devices(["jetson"], print, wait=False):
        pass
    assert re.match(
        rf"jetson is being measured by process {first.pid} since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, .*--wait", str(caught.value)
    )
    assert caught.value.exit_code == 3
    with hold_devices(["another"], print, wait=False):
        pass
    assert ended(first) == 0
    with hold_devices(["jetson"], print, wait=False):
        pass


def test_it_waits_if_it_is_told_to() -> None:
    first = holder("jetson")
    assert line_of(first) == "held"
    second = holder("jetson", "--wait")
    assert line_of(second).startswith(f"waiting for jetson, which is being measured by process {first.pid} since 20")
    assert second.poll() is None
    assert ended(first) == 0
    assert line_of(second) == "held"
    assert ended(second) == 0


def test_a_killed_holder_holds_nothing() -> None:
    first = holder("jetson")
    assert line_of(first) == "held"
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    with hold_devices(["jetson"], print, wait=False):
        pass


def test_one_process_cannot_hold_a_device_twice() -> None:
    held = hold_devices(["jetson", "jetson"], print, wait=False)
    with held, pytest.raises(UnavailableError, match=f"process {os.getpid()}"), hold_devices(["jetson"], print, wait=False):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b'{"pid": "x", "since": 1e300}', b"\xff" * 5000])
def test_a_damaged_lock_file_is_still_a_lock(content: bytes) -> None:
    with hold_devices(["jetson"], print, wait=False):
        (path,) = locks_directory().iterdir()
        path.write_bytes(content)
        with pytest.raises(UnavailableError, match="by another process"), hold_devices(["jetson"], print, wait=False):
            pass


def test_whatever_runs_on_one_machine_shares_its_lock() -> None:
    cpu = find_target("cpu")
    assert device_of(cpu) == THIS_MACHINE == device_of(find_target("rtx3090"))
    hosts = {"pi@kitchen": "kitchen", "kitchen": "kitchen", "root@127.0.0.1": THIS_MACHINE, "localhost": THIS_MACHINE}
    for host, device in hosts.items():
        assert device_of(cpu.model_copy(update={"reach": Reach(via="ssh", host=host)})) == device


def test_devices_of_any_name_have_locks_of_their_own() -> None:
    names = ["a/b", "a:b", "../a", "x" * 300, "\u00e9"]
    with hold_devices(names, print, wait=False):
        files = sorted(path.name for path in locks_directory().iterdir())
    assert len(files) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+\.lock", name) for name in files)


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    with hold_devices(["jetson"], print, wait=False):
        (path,) = locks_directory().iterdir()
    (tmp_path / "precious").write_text("mine")
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(UnavailableError, match="set ESSM_LOCKS"), hold_devices(["jetson"], print, wait=False):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ESSM_LOCKS", str(tmp_path / "file" / "locks"))
    with pytest.raises(UnavailableError, match="set ESSM_LOCKS"), hold_devices(["jetson"], print, wait=False):
        pass
