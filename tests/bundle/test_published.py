"""A bundle is published: it says for what device it was built, and nothing of how that was reached."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from essm_deploy import compile
from essm_deploy.bundle.profile import profile_json
from essm_deploy.compile import Request
from essm_deploy.compile.job import build_config, key_of, look_up
from essm_deploy.profiling.facts import DeviceFacts
from essm_deploy.profiling.verdict import Attempt
from essm_deploy.runtime.manifest import read_manifest
from essm_deploy.targets.description import find_target
from tests.targets.fake_ssh import make_fake_ssh
from tests.test_compile import FAST, QUIET, simulated

DESCRIPTION = """
name = "kitchen-pi"
description = "a board"
kind = "cpu"
backends = ["onnxruntime"]
precision = ["fp32"]
[reach]
via = "ssh"
host = "{host}"
port = 2222
python = "{python}"
directory = "~/my files"
"""


def described(folder: Path, host: str) -> str:
    """A target's file; its interpreter is this one, by a name of its own."""
    folder.mkdir(exist_ok=True)
    python, path = folder / "my python", folder / "kitchen-pi.toml"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    path.write_text(DESCRIPTION.format(host=host, python=python))
    return str(path)


def test_no_file_of_a_bundle_says_how_its_device_was_reached(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fake_ssh(tmp_path / "device", monkeypatch)
    asked = Request(keywords, described(tmp_path / "desk", "me@oven7.local"), budgets=(2,), settings=FAST)
    document = compile.build(asked, tmp_path / "out", QUIET)
    assert document["environment"]["host"] == "me@oven7.local"
    content = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for secret in ("oven7", "my python", "my files", str(tmp_path)):
        assert [name for name, found in content.items() if secret.encode() in found] == [], secret
    manifest = read_manifest(tmp_path / "out")
    for target in (manifest.target, json.loads(content["build-config.json"])["target"]):
        assert (target["name"], target["kind"], target["reach"]) == ("kitchen-pi", "cpu", {"via": "ssh"})
    profile = manifest.engine(manifest.default).profile
    assert profile is not None
    assert profile["environment"]["provider"] == "CPUExecutionProvider"
    assert profile["lowering"]


def test_two_hosts_of_one_name_are_measured_apart(keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceFacts, "_asked", lambda self: {"versions": {}, "machine": {}})
    hosts = ("me@oven7.local", "me@oven7.local", "me@fridge.local")
    jobs = [look_up(Request(keywords, described(tmp_path / "desk", host), settings=FAST), QUIET) for host in hosts]
    first, again, other = map(key_of, jobs)
    assert first == again != other
    assert build_config(jobs[0]) == build_config(jobs[2])


def test_what_was_measured_later_does_not_name_the_host_either() -> None:
    found = replace(simulated(2, Attempt()), environment={"host": "me@oven7.local", "threads": 1})
    assert profile_json(found, None)["environment"] == {"threads": 1}
    assert "lowering" not in profile_json(found, None)
    assert profile_json(found, "toeplitz")["lowering"] == "toeplitz"


@pytest.mark.parametrize("name", ["cpu", "web-wasm", "rtx3090"])
def test_all_else_of_a_description_is_published(name: str) -> None:
    target = find_target(name)
    published = target.published()
    assert published["reach"] == {"via": target.reach.via}
    assert published | {"reach": None} == json.loads(target.model_dump_json()) | {"reach": None}
