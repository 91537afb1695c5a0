"""The same engines in three runtimes: ONNX Runtime, and ONNX Runtime Web in Node and in Chromium.

    python -m tests.benchmarks.web [--checkpoint keywords] [--budgets 4 32] [--threads 1 2] [--rounds 3] [-o out/bench]

The runtimes take turns, each call of `measure_engine` in a fresh process; of the rounds, the median counts. A run is only worth
quoting if `waited`, the share of its time in which a worker was ready and got no processor, is small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import prepare
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.verdict import Measurement
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.chromium import ChromiumLauncher
from essm_deploy.targets.local import LocalLauncher
from essm_deploy.targets.node import NodeLauncher
from tests.benchmarks.machine import describe

LAUNCHERS = {"cpu": LocalLauncher(), "node": NodeLauncher(), "chromium": ChromiumLauncher()}
CHECKPOINTS = Path(__file__).parents[2] / "examples" / "checkpoints"


def main() -> None:
    """Measure, print a line a case, write the whole."""
    options = arguments()
    budgets, rows = options.budgets, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as folder:
        root, checkpoint = Path(folder), open_checkpoint(CHECKPOINTS / options.checkpoint)
        emitter = prepare(root, checkpoint, budgets, 1, BACKENDS["onnxruntime"])
        for engine in [engine for k in budgets for engine in (emitter.sequence(k), emitter.stream(k, 1))]:
            rows += [case(root, engine, threads, options.rounds) for threads in options.threads]
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "web.json").write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1))


def case(root: Path, engine: Engine, threads: int, rounds: int) -> dict[str, Any]:
    """One engine on that many threads."""
    settings, found = Settings(threads=threads), dict[str, list[Measurement]]()
    for _ in range(rounds):
        for name, launcher in LAUNCHERS.items():
            found.setdefault(name, []).append(measure_engine(launcher, root, engine, settings, budget=0))
    share = max(entry.waited_share or 0.0 for entries in found.values() for entry in entries)
    row: dict[str, Any] = {"engine": engine.id, "threads": threads, "waited": share}
    row |= {name: summary(entries) for name, entries in found.items()}
    for figure in ("p50_ms", "fastest_ms"):
        row |= {f"{name} / cpu, {figure}": row[name][figure] / row["cpu"][figure] for name in ("node", "chromium")}
    print(line(row), flush=True)
    return row


def summary(entries: list[Measurement]) -> dict[str, Any]:
    """Medians over the rounds."""
    return {
        "fastest_ms": min(min(entry.samples_ms) for entry in entries),  # what nothing disturbed
        "p50_ms": median(entry.latency.p50 for entry in entries),
        "p95_ms": median(entry.latency.p95 for entry in entries),
        "cold_start_ms": median((entry.load_ms or 0.0) + (entry.first_ms or 0.0) for entry in entries),
        "peak_bytes": median(entry.memory.peak_bytes or 0 for entry in entries),
        "baseline_bytes": median(entry.memory.baseline_bytes or 0 for entry in entries),
        "warnings": sorted({warning.split(":")[0] for entry in entries for warning in entry.warnings}),
    }


def line(row: dict[str, Any]) -> str:
    """For people."""
    figures = ", ".join(
        f"{name} p50 {row[name]['p50_ms']:.3f} p95 {row[name]['p95_ms']:.3f} fastest {row[name]['fastest_ms']:.3f} ms, "
        f"cold {row[name]['cold_start_ms']:.0f} ms, peak {row[name]['peak_bytes'] / 2**20:.0f} MiB"
        for name in LAUNCHERS
    )
    ratios = ", ".join(f"{name} {value:.2f}" for name, value in row.items() if " / " in name)
    return f"{row['engine']} threads {row['threads']}: {figures}; {ratios}; waited {row['waited']:.2f}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="keywords")
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
