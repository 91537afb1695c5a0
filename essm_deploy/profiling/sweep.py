"""One sweep: engines are emitted, compared with the reference and measured as the search asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from essm_deploy.backends.emit import Emitter
from essm_deploy.families import family_of
from essm_deploy.families.base import Arrays
from essm_deploy.profiling.interrupt import finishing
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.observations import Journal
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Measurement
from essm_deploy.profiling.worker_process import Launcher
from essm_deploy.runtime.manifest import Engine
from essm_deploy.units import format_ms

Kind = Literal["sequence", "stream"]
Check = Callable[[Path, Engine, Arrays, Arrays], float]


@dataclass
class Sweep:
    """`measure` is what `choose` calls. `kind` says which call the limits bound: a whole sequence, or one step of a stream.

    `keep` are budgets that the bundle will hold beside the chosen one: its streams share the state of the largest.
    `check` compares an engine, whose files are below a root, with the reference and raises if it is off. `suffix` tells the
    measurements of a rebuild from those of the first build.
    """

    emitter: Emitter
    kind: Kind
    launcher: Launcher
    settings: Settings
    journal: Journal
    inputs: Arrays
    check: Check
    progress: Callable[[str], None]
    keep: tuple[int, ...] = ()
    suffix: str = ""
    errors: dict[BudgetKey, float] = field(default_factory=dict)
    outputs: dict[BudgetKey, Arrays] = field(default_factory=dict)

    def measure(self, budget: BudgetKey, attempt: Attempt) -> Measurement:
        """The measurement of one budget: from the journal, or from a fresh process, which Ctrl-C lets finish once."""
        assert isinstance(budget, int)  # the budgets of this pipeline are channel counts
        name = f"k{budget}-{self.kind}{self.suffix}"
        found = self.journal.find(name, attempt.number)
        if found is not None:
            when = "before the interruption" if self.journal.was_resumed(name, attempt.number) else "already"
            self.progress(f"K={budget}: measured {when}, {_figure(found)}")
            return found
        with finishing(f"K={budget}", self.progress):
            self.progress(f"K={budget}: building and measuring...")
            measurement = self._measured(budget, attempt)
            self.journal.append(name, attempt.number, measurement)
            again = ", second look" if attempt.number > 1 else ", built anew" if self.suffix else ""
            self.progress(f"K={budget}: {_figure(measurement)}, {measurement.latency.samples} calls in a fresh process{again}")
        return measurement

    def _measured(self, budget: int, attempt: Attempt) -> Measurement:
        engine = self.verified(budget)
        return measure_engine(self.launcher, self.emitter.root, engine, self.settings, budget=budget, attempt=attempt)

    def verified(self, budget: int) -> Engine:
        """The engine that the limits bound, compared with the float64 reference of its budget, once a budget."""
        emitter = self.emitter.at(max(budget, *self.keep)) if self.keep else self.emitter.at(budget)
        engine = emitter.sequence(budget) if self.kind == "sequence" else emitter.stream(budget, 1)
        if budget not in self.errors:
            self.errors[budget] = self.check(emitter.root, engine, self.inputs, self.expected(budget))
        return engine

    def expected(self, budget: int) -> Arrays:
        """The reference's outputs for the test vectors at a budget."""
        if budget not in self.outputs:
            family = family_of(self.emitter.largest)
            self.outputs[budget] = family.reference(family.slice(self.emitter.largest, budget), self.inputs)
        return self.outputs[budget]


def _figure(measurement: Measurement) -> str:
    return f"{measurement.latency.statistic} {format_ms(measurement.latency.value)}"
