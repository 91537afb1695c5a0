"""Do ten builds choose the same budget? The shipped keyword model, with a limit half-way between two of its budgets.

    python -m tests.benchmarks.repeated -o out/bench [--quick] [--budgets 12 32] [--builds 10]

The p95 of the two budgets is measured first, as `profile` does it, the median of three; then the same `build` runs again and
again, each time with an empty cache. Exit code 1 if fewer than nine of ten chose the same K, or more than three of ten were
inconclusive.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from essm_deploy.resources import data_folder
from tests.benchmarks.report import Run, parser, table
from tests.benchmarks.turns import ROOT, environment

SAME, INCONCLUSIVE = 0.9, 0.3
CHECKPOINT = data_folder("checkpoints") / "keywords"


def answer(command: str, cache: Path, *options: str) -> dict[str, Any]:
    """The document of one command line; 0, 1 and 5 are answers, any other exit code is not."""
    line = [sys.executable, "-m", "essm_deploy.cli", command, str(CHECKPOINT), *options, "--format", "json", "--quiet"]
    done = subprocess.run(line, cwd=ROOT, env={**environment(), "ESSM_CACHE": str(cache)}, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1, 5):
        raise SystemExit(f"{' '.join(line)}: exit code {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def half_way(budgets: list[int], scratch: Path) -> float:
    """The limit in milliseconds: between the p95 of the smallest and of the largest of `budgets`."""
    asked = ("--all-K", "--budgets", f"{budgets[0]},{budgets[-1]}")
    documents = [answer("profile", scratch / f"cache-first-{number}", *asked) for number in range(3)]
    low, high = (median(d["candidates"][end]["latency_ms"]["p95"] for d in documents) for end in (0, -1))
    return (low + high) / 2


def build(number: int, limit: float, budgets: list[int], scratch: Path) -> dict[str, Any]:
    """What one build says."""
    asked = ("--budgets", ",".join(map(str, budgets)), "--max-latency", f"{limit:.4f}ms")
    return answer("build", scratch / f"cache-{number}", *asked, "-o", str(scratch / f"bundle-{number}"))


def row(number: int, document: dict[str, Any]) -> list[str]:
    """One build for people."""
    seen = [c for c in document["candidates"] if c["latency_ms"]]
    figures = ", ".join(f"K={c['budget']} {c['latency_ms']['p95']:.2f} ms" for c in seen)
    return [str(number), f"K={document['budget']}", document["status"], figures]


def main() -> int:
    """Run, print, write."""
    options = parser(__doc__)
    options.set_defaults(budgets=[12, 32])
    options.add_argument("--builds", type=int, default=10)
    run = Run("repeated", options.parse_args())
    budgets, builds = sorted(run.arguments.budgets), 3 if run.arguments.quick else run.arguments.builds
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as folder:
        scratch = Path(folder)
        run.wait()
        limit = half_way(budgets, scratch)
        documents = []
        for number in range(1, builds + 1):
            documents.append(build(number, limit, budgets, scratch))
            run.progress("  ".join(row(number, documents[-1])))
    same = Counter(document["budget"] for document in documents).most_common(1)[0][1] / builds
    open_ = sum(document["status"] == "inconclusive" for document in documents) / builds
    summary = f"Limit {limit:.2f} ms: {same:.0%} chose the same K, {open_:.0%} were inconclusive."
    rows = [row(number, document) for number, document in enumerate(documents, 1)]
    tables = [summary, table(["build", "chosen", "status", "p95 of what was measured"], rows)]
    run.finish({"limit_ms": limit, "same": same, "inconclusive": open_, "documents": documents}, tables)
    return 0 if same >= SAME and open_ <= INCONCLUSIVE else 1


if __name__ == "__main__":
    sys.exit(main())
