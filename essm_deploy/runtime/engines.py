"""The engines of a bundle, opened when they are first needed and shared by all that run them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from essm_deploy.errors import UsageError
from essm_deploy.runtime.manifest import Budget, Engine, Manifest
from essm_deploy.runtime.session import Session, SessionFactory, open_session


class EnginePool:
    """Engines below `root` by id. `model` is the checkpoint's hash, `labels` what a classifier's outputs are called.

    `opener` opens them, if not by the backend that they name.
    """

    def __init__(
        self,
        root: Path,
        engines: Iterable[Engine],
        *,
        budgets: Iterable[Budget] = (),
        model: str = "",
        labels: tuple[str, ...] = (),
        threads: int | None = None,
        opener: SessionFactory | None = None,
    ) -> None:
        self.root = root
        self._opener = opener
        self.engines = {engine.id: engine for engine in engines}
        self.budgets = tuple(budgets)
        self.model = model
        self.labels = labels
        self.threads = threads
        self._sessions: dict[str, Session] = {}

    @classmethod
    def of(cls, root: Path, manifest: Manifest, threads: int | None = None) -> EnginePool:
        """All engines of a bundle."""
        model, labels = manifest.model.hash, manifest.model.id2label
        return cls(root, manifest.engines, budgets=manifest.budgets, model=model, labels=labels, threads=threads)

    def session(self, id: str) -> Session:
        """The engine called `id`, opened; raises what `open_session` raises."""
        if id not in self._sessions:
            self._sessions[id] = (self._opener or open_session)(self.root, self.engines[id], self.threads)
        return self._sessions[id]

    def budget_id(self, budget: int | str) -> str:
        """The id of the budget called `budget`, or of that size; UsageError if the bundle has none such."""
        return budget_id(self.budgets, budget)


def budget_id(budgets: Iterable[Budget], budget: int | str) -> str:
    """The id of the budget called `budget`, or whose only axis has that size; UsageError if there is none."""
    known = {entry.id: entry for entry in budgets}
    for entry in known.values():
        if budget == entry.id or (isinstance(budget, int) and list(entry.axes.values()) == [budget]):
            return entry.id
    raise UsageError(f"the bundle has no budget {budget!r}: it has {', '.join(known)}")
