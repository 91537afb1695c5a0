"""A worker that is any Python program."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from essm_deploy.runtime.manifest import Engine

PRELUDE = """
import json, os, signal, sys, time
def send(event, **values):
    print(json.dumps({"event": event, **values}), flush=True)
def ready(**values):
    send("hello", protocol=1)
    sys.stdin.readline()
    send("loaded", **{"load_ms": 1.0, "provider": "x", "threads": 1, **values})
    send("warm", iterations=1, settled=True, first_ms=1.0, median_ms=1.0, seconds=0.1)
def memory(**values):
    names = ("peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes")
    send("memory", **{**dict.fromkeys(names), "reasons": {}, **values})
"""


@dataclass
class Scripted:
    """Starts the program after PRELUDE; what was started is kept."""

    program: str
    remote: bool = False
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def place(self, root: Path, engine: Engine) -> str:
        return str(root)

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(self.program)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        self.started.append(process)
        return process
