"""Engines of this product for a benchmark, emitted as `essm-deploy build` does it, and their floors.

`python -m tests.benchmarks.ours CHECKPOINT BUDGET DIRECTORY` is run in a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from essm_deploy.backends import find_backend
from essm_deploy.backends.emit import prepare
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.planner import MeasuredPlanner
from essm_deploy.targets.description import find_target
from essm_deploy.targets.reach import launcher_for
from tests.benchmarks.engines import RECORD
from tests.benchmarks.floor import write_floor


def emit(checkpoint: Path, budget: int, root: Path, threads: int = 2) -> dict[str, Any]:
    """Every engine of one budget in `root`, their floors, and a record of both. Lowerings are planned by measurement."""
    root.mkdir(parents=True, exist_ok=True)
    opened, target = open_checkpoint(checkpoint), find_target("cpu")
    backend = find_backend(target)
    planner = MeasuredPlanner(launcher_for(target), backend, target.name, threads, lambda text: print(text, file=sys.stderr))
    emitter = prepare(root, opened, [budget], 1, backend, planner)
    engines = emitter.bundle([budget])
    floors = [write_floor(root, engine) for engine in engines if engine.kind != "anchor"]
    record = {
        "engines": [engine.to_json() for engine in (*engines, *floors)],
        "lowerings": emitter.lowerings,
        "plans_ms": planner.records,
    }
    (root / RECORD).write_text(json.dumps(record))
    return record


if __name__ == "__main__":
    emit(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
