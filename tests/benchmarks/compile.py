"""From a checkpoint to the first answer: how long our compiler, torch.compile and the exporters take.

    python -m tests.benchmarks.compile -o out/bench [--quick] [--budgets 8]

Every step is a fresh process with empty caches (but the operating system's). `make` is the process that writes the artifact,
from the interpreter's start to its end; `first answer` is from opening it to the end of the first call, imports included.
Ours plans its lowerings by measurement; `plans kept` is the second build, which measures nothing.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contender import OURS, Contender, Setting, preparation
from tests.benchmarks.match import setting_of
from tests.benchmarks.report import Run, parser, table
from tests.benchmarks.turns import DidNotRun, make, open_player

KEPT = "plans kept"


@dataclass(frozen=True)
class Entry:
    """A contender, and whether its caches are kept from the entry before."""

    contender: Contender
    keep: bool = False

    @property
    def name(self) -> str:
        return f"{self.contender.name}, {KEPT}" if self.keep else self.contender.name


ENTRIES = (
    Entry(Contender(OURS, "sequence")),
    Entry(Contender(OURS, "sequence"), keep=True),
    Entry(Contender("torch eager", "fft-loop-transposed")),
    Entry(Contender("torch.compile", "fft-real-transposed", "default")),
    Entry(Contender("torch.compile", "fft-loop-transposed", "default")),
    Entry(Contender("torch.compile", "fft-real-transposed", "max-autotune-no-cudagraphs")),
    Entry(Contender("ONNX Runtime", "fft-real-transposed")),
    Entry(Contender("OpenVINO", "fft-real-transposed")),
    Entry(Contender("OpenVINO", "dft-gemms")),
    Entry(Contender("ExecuTorch", "dft-gemms")),
)


def main() -> None:
    """Run, print, write."""
    options = parser(__doc__)
    options.set_defaults(budgets=[8])
    run = Run("compile", options.parse_args())
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as scratch:
        results = [_measure(setting_of("bytes", k, Path(scratch), run), run) for k in run.arguments.budgets]
    run.finish({"budgets": results}, [part for result in results for part in _tables(result)])


def _measure(setting: Setting, run: Run) -> dict[str, Any]:
    run.progress(f"bytes, K={setting.budget}")
    times: dict[str, list[tuple[float, float]]] = {entry.name: [] for entry in ENTRIES}
    absent: dict[str, str] = {}
    for turn in range(1 if run.arguments.quick else 3):
        fresh = replace(setting, work=setting.work / f"turn{turn}")
        for entry in ENTRIES:
            _add_time(times, absent, entry, fresh, run)
    return {"budget": setting.budget, "seconds": times, "did_not_run": absent}


def _add_time(
    times: dict[str, list[tuple[float, float]]], absent: dict[str, str], entry: Entry, setting: Setting, run: Run
) -> None:
    try:
        times[entry.name].append(_time(entry, setting))
        run.progress(f"  {entry.name}: {times[entry.name][-1][0]:.1f} s to make, {times[entry.name][-1][1]:.1f} s to answer")
    except DidNotRun as reason:
        absent[entry.name] = str(reason)
        run.progress(f"  {entry.name}: did not run: {reason}")


def _time(entry: Entry, setting: Setting) -> tuple[float, float]:
    """Seconds to make the artifact (0 where there is none), and seconds to the first answer."""
    if not entry.keep:
        shutil.rmtree(setting.work, ignore_errors=True)
    shutil.rmtree(setting.ours, ignore_errors=True)
    setting.work.mkdir(parents=True, exist_ok=True)
    caches = {"ESSM_CACHE": str(setting.work / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(setting.work / "inductor")}
    task, start = preparation(entry.contender, setting), time.perf_counter()
    failure = make(task, caches) if task else None
    made = time.perf_counter() - start if task else 0.0
    if failure:
        raise DidNotRun(failure)
    player = open_player(entry.contender, setting, {}, caches)
    player.process.close()
    return made, player.seconds


def _tables(result: dict[str, Any]) -> list[str]:
    first = _totals(result, ENTRIES[0].name)
    rows: list[list[object]] = []
    for entry in ENTRIES:
        totals = _totals(result, entry.name)
        if totals:
            made, answered = (np.median(column) for column in zip(*result["seconds"][entry.name], strict=True))
            ratio = f"{np.median(totals) / np.median(first):.2f}" if first else ""
            rows.append([entry.name, ratio, f"{made:.1f}", f"{answered:.1f}", f"{min(totals):.1f} to {max(totals):.1f}"])
    rows += [[name, "", "", "", f"did not run: {reason}"] for name, reason in result["did_not_run"].items()]
    columns = ["", "total / ours", "make, s", "first answer, s", "total, s: least to most"]
    return [f"## bytes, K={result['budget']}", table(columns, rows)]


def _totals(result: dict[str, Any], name: str) -> list[float]:
    return [made + answered for made, answered in result["seconds"][name]]


if __name__ == "__main__":
    main()
