"""What a user installs: the wheel, away from the checkout, finds its targets and its checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, timeout=280, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return folder


def run(installed: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The installed program, with this environment's libraries and nothing of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "essm_deploy.cli", *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_the_wheel_holds_both_packages_and_the_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "essm_deploy/py.typed" in names
    assert "essm_deploy/profiling/reporting/page.css" in names
    assert "essm_train/trainer.py" in names
    assert "essm_deploy/_data/targets/cpu.toml" in names
    assert "essm_deploy/_data/budgets/realtime-keyword.toml" in names
    assert "essm_deploy/_data/checkpoints/keywords/model.safetensors" in names
    assert not [n for n in names if n.startswith(("tests/", "train/"))]


def test_targets_and_build_work_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, tmp_path, "targets", "--format", "json")
    assert listed.returncode == 0, listed.stderr
    assert {"cpu", "rtx3090"} <= {t["name"] for t in json.loads(listed.stdout)["targets"]}
    built = run(installed, tmp_path, "build", "--target", "cpu", "--budgets", "2", "--format", "json")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "out" / "keywords-cpu" / "manifest.json").is_file()
    assert json.loads(built.stdout)["budget"] == 2
