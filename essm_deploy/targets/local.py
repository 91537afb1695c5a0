"""Starting a worker on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from essm_deploy.errors import UnavailableError
from essm_deploy.runtime.manifest import Engine

# What a child needs to find its libraries; anything else (PYTHONPATH, OMP_NUM_THREADS, proxies) would make a measurement
# depend on the shell that it was started from.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT", "CUDA_VISIBLE_DEVICES")
_PACKAGES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class LocalLauncher:
    """Starts `python -m essm_deploy.runtime.worker` with this interpreter, in a session of its own.

    The session keeps a Ctrl-C at the terminal from reaching the worker: whoever started it decides what to do with it.
    """

    python: str = sys.executable
    remote: ClassVar[bool] = False

    def place(self, root: Path, engine: Engine) -> str:
        """The worker sees this machine's files: nothing to do."""
        return str(root.resolve())

    def start(self) -> subprocess.Popen[str]:
        """The running worker, with text pipes. Raises UnavailableError if the interpreter cannot be started."""
        try:
            return subprocess.Popen(
                [self.python, "-m", "essm_deploy.runtime.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={name: os.environ[name] for name in KEPT if name in os.environ},
                # `-m` puts the working directory on the import path: this one holds the package and nothing of the user's.
                cwd=_PACKAGES,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(f"the worker cannot be started with {self.python}: {error.strerror}") from None
