"""The README is true: its commands run, and the files that it names exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_examples import write_wav

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (essm-deploy .+)$", README, re.MULTILINE)


def test_the_readme_shows_a_session() -> None:
    assert len(COMMANDS) >= 3
    assert not re.search(r"@[A-Z]+@", README)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for the whole session of the README, with a clip in it."""
    folder = tmp_path_factory.mktemp("readme")
    write_wav(folder / "clip.wav")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_runs(command: str, place: Path) -> None:
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "essm_deploy.cli", *words], cwd=place, capture_output=True, text=True, timeout=280, check=False
    )
    expected = {1} if "50us" in words else {0, 5}
    assert done.returncode in expected, done.stderr


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("name", re.findall(r"^    (?:  )?([a-z_]+(?:/|\.py)[a-z_/]*)", README, re.MULTILINE))
def test_the_tree_of_the_readme_is_the_tree(name: str) -> None:
    assert (ROOT / name).exists() or (ROOT / "essm_deploy" / name).exists()
