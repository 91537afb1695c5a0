"""What `doctor` and `targets` say about a device over ssh, with a program in ssh's place."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pytest

from essm_deploy.cli import cli
from essm_deploy.cli.guard import guarded
from essm_deploy.runtime import host
from essm_deploy.targets.ssh_packages import NEEDED
from tests.targets.fake_ssh import FakeSsh, make_fake_ssh

ROOT = Path(__file__).parents[2]
DESCRIPTION = """
name = "kitchen"
description = "the one in the kitchen"
kind = "{kind}"
backends = ["onnxruntime"]
precision = ["fp32"]
[reach]
via = "ssh"
host = "pi@kitchen"
python = "{python}"
"""
DEVICE = """
[device]
compute_capability = "8.7"
memory_bytes = 1
bandwidth_bytes_per_s = 1.0
fp32_flops_per_s = 1.0
source = "a data sheet"
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    return make_fake_ssh(tmp_path / "device", monkeypatch)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return describe(tmp_path)


def describe(folder: Path, *, python: str = sys.executable, kind: str = "cpu", more: str = "") -> Path:
    path = folder / "kitchen.toml"
    path.write_text(DESCRIPTION.format(python=python, kind=kind) + more)
    return path


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["essm-deploy", *map(str, args)])
        code = guarded(cli, "essm-deploy")
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_device_that_has_everything_is_ready(device: FakeSsh, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--target", target, "--format", "json")
    report = json.loads(out)
    found = {check["what"]: check["found"] for check in report["checks"]}
    assert (code, report["ready"], report["target"]) == (0, True, "kitchen")
    assert found["numpy"] == numpy.__version__
    assert found["onnxruntime"] == onnxruntime.__version__
    assert host.cpu_model() in found["processor"]
    assert sys.executable in found["python"]
    assert str(device.home) in found["disk"]
    assert not (device.home / ".cache/essm-deploy").exists()  # questions leave nothing behind
    assert "kitchen: ready" in run(capsys, "doctor", "--target", target)[1]


def test_what_is_missing_is_named_with_what_brings_it(
    device: FakeSsh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (device.home / ".cache/essm-deploy").mkdir(parents=True)
    (device.home / ".cache/essm-deploy/thesis.tex").touch()
    code, out, _ = run(capsys, "doctor", "--target", describe(tmp_path, python="/usr/bin/python3", kind="gpu", more=DEVICE))
    assert code == 3
    assert re.search(r"numpy: run `/usr/bin/python3 -m pip install numpy onnxruntime` there", out)
    assert "gpu: expected compute capability 8.7" in out
    assert "did not write" in out
    assert "kitchen: not ready" in out


def test_a_device_that_does_not_answer_is_one_line(device: FakeSsh, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (device.folder / "refuse").write_text("ssh: connect to host kitchen port 22: Connection refused\n")
    code, out, err = run(capsys, "doctor", "--target", target, "--format", "json")
    checks = {check["what"]: check for check in json.loads(out)["checks"]}
    assert (code, err) == (3, "")
    assert list(checks) == ["backend", "ssh"]
    assert "nothing listens for ssh" in checks["ssh"]["fix"]


def test_clean_removes_our_directory_and_nothing_else(
    device: FakeSsh, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = device.home / ".cache/essm-deploy"
    ours.mkdir(parents=True)
    ours.chmod(0o700)
    (ours / ".essm-deploy").touch()
    (ours / "files").mkdir()
    (ours / "files" / ("0" * 64)).write_bytes(bytes(5000))
    code, out, _ = run(capsys, "doctor", "--target", target, "--clean", "--format", "json")
    assert (code, json.loads(out)["freed_bytes"]) == (0, 5000)
    assert [path.name for path in (device.home / ".cache").iterdir()] == []


def test_clean_is_for_devices_over_ssh(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "doctor", "--clean")[0] == 2
    code, _, err = run(capsys, "doctor", "--target", "cpu", "--clean")
    assert (code, "not reached over ssh" in err) == (2, True)


def test_a_target_of_this_machine_is_looked_at_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--target", "cpu")
    assert (code, out.splitlines()[-1]) == (0, "cpu: ready")


def test_targets_lists_a_device_of_ones_own_without_connecting(
    device: FakeSsh, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "targets", target, "--format", "json")
    rows = {row["name"]: row for row in json.loads(out)["targets"]}
    assert code == 0
    assert "over ssh, pi@kitchen" in rows["kitchen"]["state"]
    assert rows["kitchen"]["reach"]["directory"] == "~/.cache/essm-deploy"
    assert rows["cpu"]["reach"] == {"via": "local"}
    assert device.log == []


def test_a_device_needs_the_versions_that_the_package_needs() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, version in NEEDED.items():
        assert f'"{name}>={".".join(map(str, version))}"' in text


def test_the_description_in_the_docs_is_sound(tmp_path: Path) -> None:
    from essm_deploy.targets.description import read_target

    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/targets.md").read_text(), re.DOTALL)
    reaches = []
    for block in blocks:
        (tmp_path / "described.toml").write_text(block)
        reaches.append(read_target(tmp_path / "described.toml").reach.via)
    assert reaches.count("ssh") >= 2
