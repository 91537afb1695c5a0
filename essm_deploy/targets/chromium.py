"""Starting a worker in a headless Chromium, on ONNX Runtime Web."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.browser_process import find_chromium
from essm_deploy.targets.web_runtime import find_package, start_bridge


@dataclass(frozen=True)
class ChromiumLauncher:
    """Starts a worker in a page. `browser` is a program, `node_modules` a folder with onnxruntime-web; None looks for them."""

    browser: str | None = None
    node_modules: str | None = None
    remote: ClassVar[bool] = True

    def checked(self) -> ChromiumLauncher:
        """Itself. UnavailableError says what is missing."""
        find_chromium(self.browser)
        find_package(self.node_modules)
        return self

    def place(self, root: Path, engine: Engine) -> str:
        """The bridge sees this machine's files and serves them to the page: nothing to do."""
        return str(root.resolve())

    def start(self) -> subprocess.Popen[str]:
        """The running worker, with text pipes. UnavailableError says what is missing."""
        return start_bridge("chromium", find_chromium(self.browser), find_package(self.node_modules))
