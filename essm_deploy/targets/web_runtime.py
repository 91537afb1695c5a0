"""ONNX Runtime Web on this machine: where npm put it, and how its workers are started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Literal

from essm_deploy.errors import UnavailableError
from essm_deploy.targets.local import KEPT

MODULES = Path(__file__).resolve().parents[1] / "web"
"""Our JavaScript modules; docs/web.md says what is in them."""

PACKAGE = "onnxruntime-web"
TESTED = "1.30.0"
"""The version that the tests run."""

VARIABLE = "ESSM_NODE_MODULES"

_INSTALL = f"npm install {PACKAGE}@{TESTED}"
_PACKAGES = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 10.0


class BridgeProcess(subprocess.Popen[str]):
    """A bridge; killing it lets it end its browser and remove the browser's files first."""

    def kill(self) -> None:
        """End it, within a few seconds at the latest."""
        self.terminate()
        try:
            self.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            super().kill()


def start_bridge(via: Literal["node", "chromium"], program: str, package: Path) -> BridgeProcess:
    """A worker in `program`, which speaks the protocol on its text pipes."""
    return BridgeProcess(
        [sys.executable, "-m", "essm_deploy.targets.web_bridge", via, program, str(package)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=_environment(),
        cwd=_PACKAGES,  # `-m` looks there first: it holds the package
        start_new_session=True,
    )


def find_node() -> str:
    """The path of Node. UnavailableError if there is none."""
    node = shutil.which("node")
    if node is None:
        raise UnavailableError(f"node is not on the PATH: install Node.js 20 or newer, then run `{_INSTALL}`")
    return node


def find_package(stated: str | None = None) -> Path:
    """The folder of onnxruntime-web: below `stated`, below $ESSM_NODE_MODULES, or where `npm install -g` puts it.

    UnavailableError gives the npm line.
    """
    for origin, folder in (("node_modules of the target", stated), (f"${VARIABLE}", os.environ.get(VARIABLE))):
        if folder:
            return _package(Path(folder).expanduser(), origin)
    found = _global_modules()
    if not found or not _is_package(Path(found) / PACKAGE):
        raise UnavailableError(
            f"{PACKAGE} is not installed: run `{_INSTALL}` in a folder of your own and set {VARIABLE} to its node_modules, "
            f"or run it with -g"
        )
    return (Path(found) / PACKAGE).resolve()


def _package(folder: Path, origin: str) -> Path:
    if not _is_package(folder / PACKAGE):
        raise UnavailableError(
            f"{origin} is {folder}, where there is no {PACKAGE}: run `{_INSTALL}` in the folder that holds it"
        )
    return (folder / PACKAGE).resolve()


def _is_package(folder: Path) -> bool:
    return (folder / "dist" / "ort.wasm.min.mjs").is_file()


@cache
def _global_modules() -> str:
    """npm's own folder; empty without npm."""
    npm = shutil.which("npm")
    if npm is None:
        return ""
    try:
        done = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=60, check=True, env=_environment())
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    # NODE_OPTIONS would change what is measured.
    return {name: os.environ[name] for name in KEPT if name in os.environ}
