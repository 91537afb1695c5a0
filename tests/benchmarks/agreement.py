"""Does an app see what `profile` says? One engine, measured in turns by the product and by twenty lines around its runtime.

    python -m tests.benchmarks.agreement -o out/bench [--quick] [--engines bytes-stream] [--budgets 2 8 32] [--rounds 120]

The shipped checkpoints are built as a user builds them. In every round `measure_engine`, which is what `profile` and `build`
call, and `tests.benchmarks.app` each start a process of their own and call the same engine of the same bundle, one after the
other, who begins changing from round to round. Two processes of one engine differ by a quarter and more on a virtual machine:
by where their threads and pages came to lie, and by what the host does meanwhile. So the comparison is the geometric mean of
the ratios of single rounds, with a 95% bootstrap interval over the rounds, and it goes on until that interval lies within 10%
of one for the median and for the p95, or for `--rounds`. Exit code 1 if any engine did not get there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.resources import data_folder
from essm_deploy.runtime import read_manifest
from essm_deploy.targets.local import LocalLauncher
from tests.benchmarks.machine import Watch
from tests.benchmarks.ratios import summary
from tests.benchmarks.report import Run, parser, table
from tests.benchmarks.turns import ROOT, environment

BOUND = 0.10
STATISTICS = {"median": 50, "p95": 95}
LEAST_ROUNDS = 20
"""Before the first look at the interval: looking often at a short series would find agreement by luck."""
KINDS = ("keywords-sequence", "bytes-sequence", "bytes-stream")
LONG_SECONDS = 6.0
"""Of an app that calls the byte model's sequence: about forty calls."""


@dataclass(frozen=True)
class Case:
    """One engine of a shipped model."""

    model: str
    budget: int
    kind: str

    @property
    def title(self) -> str:
        """For people."""
        call = "a step" if self.kind == "stream" else "a sequence"
        return f"{self.model}, K={self.budget}, {call}"


@dataclass(frozen=True)
class Agreement:
    """Geometric mean of the ratios of `rounds` rounds, and the ends of its 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, above: Sequence[float], below: Sequence[float]) -> Agreement:
        """Of two series of equal length, round by round."""
        logs = np.log(np.asarray(above) / np.asarray(below))
        means = np.random.default_rng(0).choice(logs, (2000, logs.size)).mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        return cls(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)), logs.size)

    @property
    def shown(self) -> bool:
        """Whether the whole interval is within the bound."""
        return self.low >= 1 - BOUND and self.high <= 1 + BOUND

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass
class Result:
    """Samples of all rounds, by who took them. `others` is the share of all CPU time that other processes took meanwhile."""

    case: Case
    samples: dict[str, list[list[float]]] = field(default_factory=lambda: {"profile": [], "app": []})
    warnings: list[str] = field(default_factory=list)
    others: float = 0.0

    def rounds(self, who: str, percent: float) -> list[float]:
        """A percentile in milliseconds, round by round."""
        return [float(np.percentile(taken, percent)) for taken in self.samples[who]]

    def agreement(self, percent: float) -> Agreement:
        """What `profile` says over what the app sees."""
        return Agreement.of(self.rounds("profile", percent), self.rounds("app", percent))

    @property
    def agrees(self) -> bool:
        """Whether both percentiles are shown to be within the bound."""
        return all(self.agreement(percent).shown for percent in STATISTICS.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.case.model,
            "budget": self.case.budget,
            "kind": self.case.kind,
            "agreement": {name: asdict(self.agreement(percent)) for name, percent in STATISTICS.items()},
            "agrees": self.agrees,
            "others_cpu_share": self.others,
            "warnings": self.warnings,
            "samples_ms": self.samples,
        }


def build(model: str, budget: int, threads: int, output: Path) -> Path:
    """The bundle of one budget, as the command line builds it."""
    command = [sys.executable, "-m", "essm_deploy.cli", "build", str(data_folder("checkpoints") / model), "-o", str(output)]
    command += ["--budgets", str(budget), "--threads", str(threads), "--quiet"]
    subprocess.run(command, check=True, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    return output


def by_profile(bundle: Path, case: Case, settings: Settings, result: Result) -> list[float]:
    """What `profile` measures of the engine."""
    found = measure_engine(LocalLauncher(), bundle, engine_of(bundle, case), settings, budget=case.budget)
    result.warnings += found.warnings
    return list(found.samples_ms)


def by_app(bundle: Path, case: Case, settings: Settings) -> list[float]:
    """What an app measures around its call, in a process of its own."""
    engine = engine_of(bundle, case).id
    seconds = LONG_SECONDS if (case.model, case.kind) == ("bytes", "sequence") else 2 * settings.min_seconds
    command = [sys.executable, "-m", "tests.benchmarks.app", str(bundle), engine, str(settings.threads), str(seconds)]
    done = subprocess.run(command, check=True, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    times: list[float] = json.loads(done.stdout)
    return times


def _children_seconds() -> float:
    """Processor time of the processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def engine_of(bundle: Path, case: Case) -> Any:
    """The sequence engine, or the one of single steps."""
    engines = [e for e in read_manifest(bundle).engines if e.kind == case.kind and e.chunk in (None, 1)]
    return engines[0]


def compare(case: Case, bundle: Path, settings: Settings, rounds: int, run: Run) -> Result:
    """Rounds of turns, until both percentiles agree or for `rounds`."""
    result, watch = Result(case), Watch.start()
    takers: dict[str, Callable[[], list[float]]] = {
        "profile": lambda: by_profile(bundle, case, settings, result),
        "app": lambda: by_app(bundle, case, settings),
    }
    start, children = time.perf_counter(), _children_seconds()
    for number in range(rounds):
        order = list(takers) if number % 2 == 0 else list(reversed(takers))
        for who in order:
            result.samples[who].append(takers[who]())
        if number + 1 >= LEAST_ROUNDS and result.agrees:
            break
    ours = (_children_seconds() - children) / (time.perf_counter() - start) / (os.cpu_count() or 1)
    result.others = max(0.0, watch.others() - ours)
    run.progress(f"{case.title}: {', '.join(f'{name} {result.agreement(p)}' for name, p in STATISTICS.items())}")
    return result


def agreement_table(results: Sequence[Result]) -> str:
    """Ratios, one row an engine, and what both saw."""
    rows = []
    for result in results:
        times = [_times(result, who, percent) for percent in STATISTICS.values() for who in ("profile", "app")]
        ratios = [str(result.agreement(percent)) for percent in STATISTICS.values()]
        verdict = "yes" if result.agrees else "**no**"
        rows.append([result.case.title, *times, *ratios, str(len(result.samples["app"])), verdict, f"{result.others:.0%}"])
    columns = ["engine", "median, profile", "median, app", "p95, profile", "p95, app", "medians, ratio", "p95, ratio", "rounds"]
    return table([*columns, f"within {BOUND:.0%}", "CPU time of others"], rows)


def _times(result: Result, who: str, percent: float) -> str:
    stats = summary(result.rounds(who, percent))
    return f"{stats.median:.3f} ms ({stats.p10:.3f} to {stats.p90:.3f})"


def main() -> int:
    """Run, print, write."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=120, help="of both, at most, for each engine (120)")
    options.add_argument("--engines", nargs="+", choices=KINDS, default=KINDS, help="(all)")
    options.add_argument("--bytes-budget", type=int, default=8, metavar="K", help="of the byte model (8)")
    run = Run("agreement", options.parse_args())
    asked = run.arguments
    settings = Settings(threads=asked.threads)
    cases = [Case("keywords", budget, "sequence") for budget in asked.budgets]
    cases += [Case("bytes", asked.bytes_budget, kind) for kind in ("sequence", "stream")]
    cases = [case for case in cases if f"{case.model}-{case.kind}" in asked.engines]
    results = []
    with tempfile.TemporaryDirectory(prefix="essm-bench-") as scratch:
        bundles = {
            name: build(*name, asked.threads, Path(scratch) / f"{name[0]}-{name[1]}")
            for name in dict.fromkeys((case.model, case.budget) for case in cases)
        }
        for case in cases:
            run.wait()
            results.append(compare(case, bundles[case.model, case.budget], settings, 2 if asked.quick else asked.rounds, run))
    run.finish({"bound": BOUND, "comparisons": [r.to_json() for r in results]}, [agreement_table(results)])
    return 0 if all(result.agrees for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
