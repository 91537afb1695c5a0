"""A program called `ssh` that runs on this machine, through `sh`, what the real one would run on a device.

<folder>/bin/ssh        first on PATH; understands the options that are used
<folder>/home           the home there; the directory that a session starts in
<folder>/refuse         if it exists: what a connection says on stderr before it fails
<folder>/login          if it exists: what the login files of the device print
<folder>/log            one line a connection or session
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.targets.description import Reach

_PROGRAM = """#!/bin/sh
folder={folder}
kind=session
while [ $# -gt 0 ]; do
  case "$1" in
    -oControlMaster=yes) kind=connection ;;
    -p) shift ;;
    --) shift; break ;;
  esac
  shift
done
host="$1"; shift
if [ -e "$folder/refuse" ]; then cat "$folder/refuse" >&2; exit 255; fi
echo "$kind $host" >> "$folder/log"
cd "$folder/home" || exit 1
if [ -e "$folder/login" ]; then cat "$folder/login"; fi
HOME="$folder/home" exec sh -c "$*"
"""


@dataclass
class FakeSsh:
    """The device behind it."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def reach(self, **keys: Any) -> Reach:
        """A way to the device, with this process's interpreter there unless `keys` say otherwise."""
        return Reach(**{"via": "ssh", "host": "pi@kitchen", "python": sys.executable, **keys})


def make_fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    """Put the program on PATH."""
    (folder / "bin").mkdir(parents=True)
    (folder / "home").mkdir()
    program = folder / "bin" / "ssh"
    program.write_text(_PROGRAM.format(folder=f"'{folder}'"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return FakeSsh(folder)
