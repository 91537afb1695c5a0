"""The sweeps of a run: jobs that differ in nothing but their limits share one, and so its measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from essm_deploy.backends.base import anew
from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.compile.job import Job, key_of
from essm_deploy.compile.parity import check_parity
from essm_deploy.files import staging
from essm_deploy.profiling.locks import device_of, hold_devices
from essm_deploy.profiling.observations import open_journal
from essm_deploy.profiling.sweep import Sweep
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Measurement


@dataclass
class Sweeps:
    """The open sweeps by key. `of` opens one when it is first asked for; they close together, when the run ends."""

    jobs: Sequence[Job]
    _stack: ExitStack
    _open: dict[str, Sweep] = field(default_factory=dict)

    def of(self, job: Job) -> Sweep:
        """The job's sweep. Raises UsageError if another process holds its journal."""
        key = key_of(job)
        if key not in self._open:
            self._open[key] = self._stack.enter_context(_opened(job, key, self._budgets(job)))
        return self._open[key]

    def finish(self) -> dict[str, str | None]:
        """All have their answers: later ones are measured afresh. Returns where each record now is, by key."""
        finished = {key: sweep.journal.finish() for key, sweep in self._open.items()}
        return {key: str(path) if path else None for key, path in finished.items()}

    def records(self) -> dict[str, str | None]:
        """Where each record is that the same command would resume, by key."""
        return {key: str(sweep.journal.path) for key, sweep in self._open.items()}

    def how_to_resume(self) -> str:
        """For whoever interrupts the run."""
        paths = [sweep.journal.path for sweep in self._open.values() if sweep.journal.path.exists()]
        if not paths:
            return "nothing had been measured yet"
        return f"{', '.join(map(str, paths))} keeps what was measured: the same command resumes"

    def _budgets(self, job: Job) -> list[int]:
        """Whatever any of the jobs may ask of this sweep."""
        asked = [other for other in self.jobs if other.hash == job.hash]
        return sorted({int(candidate.budget) for other in (job, *asked) for candidate in other.candidates})


@contextmanager
def sweeping(jobs: Sequence[Job]) -> Iterator[Sweeps]:
    """Hold the devices that will be measured, and keep the sweeps until the block ends.

    A KeyboardInterrupt leaves with a message that says how to resume. Raises UnavailableError for a device that another
    sweep holds.
    """
    measured = [job for job in jobs if job.here]
    wait = any(job.request.wait for job in measured)
    with ExitStack() as stack:
        for launcher in [job.facts.launcher for job in jobs]:
            stack.callback(getattr(launcher, "close", lambda: None))  # of a connection to a device
        if measured:
            stack.enter_context(hold_devices([device_of(job.target) for job in measured], measured[0].progress, wait=wait))
        sweeps = Sweeps(jobs, stack)
        try:
            yield sweeps
        except KeyboardInterrupt:
            raise KeyboardInterrupt(sweeps.how_to_resume()) from None


def rebuild(job: Job, sweep: Sweep, budget: BudgetKey, number: int, look: Attempt) -> Measurement:
    """Emit and build a budget's engine anew, elsewhere, and measure that one in a fresh process."""
    with staging() as root:
        emitter = _emitter(replace(job, backend=anew(job.backend)), root, [int(budget)])
        return replace(sweep, emitter=emitter, suffix=f"-rebuild{number}", errors={}).measure(budget, look)


@contextmanager
def _opened(job: Job, key: str, budgets: list[int]) -> Iterator[Sweep]:
    """A staging directory with the weights of the largest budget, and the journal of this question."""
    with open_journal(key) as journal, staging() as root:
        if journal.damaged:
            job.progress(f"{journal.path}: {journal.damaged} damaged line(s) left out")
        if journal.resumed:
            job.progress(f"resuming an interrupted sweep: {journal.resumed} measurement(s) kept in {journal.path}")
        yield Sweep(
            emitter=_emitter(job, root, budgets),
            kind=job.kind,
            launcher=job.facts.launcher,
            settings=job.request.settings,
            journal=journal,
            inputs=job.vectors,
            check=partial(check_parity, job.facts.launcher, threads=job.request.settings.threads),
            progress=job.progress,
            keep=job.request.keep,
        )


def _emitter(job: Job, root: Path, budgets: Sequence[int]) -> Emitter:
    return prepare(
        root, job.checkpoint, [*budgets, *job.request.keep], job.batch, job.backend, job.planner, job.request.precision
    )
