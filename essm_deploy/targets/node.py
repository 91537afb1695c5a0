"""Starting a worker in Node, on ONNX Runtime Web."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.web_runtime import find_node, find_package, start_bridge


@dataclass(frozen=True)
class NodeLauncher:
    """Starts a worker in Node. `node_modules` is a folder that holds onnxruntime-web; None looks for it."""

    node_modules: str | None = None
    remote: ClassVar[bool] = True

    def checked(self) -> NodeLauncher:
        """Itself. UnavailableError says what is missing."""
        find_node()
        find_package(self.node_modules)
        return self

    def place(self, root: Path, engine: Engine) -> str:
        """The worker sees this machine's files: nothing to do."""
        return str(root.resolve())

    def start(self) -> subprocess.Popen[str]:
        """The running worker, with text pipes. UnavailableError says what is missing."""
        return start_bridge("node", find_node(), find_package(self.node_modules))
