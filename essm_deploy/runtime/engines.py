"""The engines of a bundle, opened when they are first needed and shared by all that run them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from essm_deploy.errors import UsageError
from essm_deploy.runtime.manifest import Budget, Engine, Manifest
from essm_deploy.runtime.requirements import TENSORRT
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
            engine = self.engines[id]
            # An anchor runs once in hundreds of steps. Threads of its own would then spin beside those of the steps.
            threads = 1 if engine.kind == "anchor" else self.threads
            self._sessions[id] = (self._opener or open_session)(self.root, engine, threads)
        return self._sessions[id]

    def budget_id(self, budget: int | str) -> str:
        """The id of the budget called `budget`, or of that size; UsageError if the bundle has none such."""
        return budget_id(self.budgets, budget)


def with_cuda_graph(manifest: Manifest, cuda_graph: bool | None) -> Manifest:
    """The manifest whose TensorRT engines are run as a CUDA graph, or are not; None leaves it as it is.

    UsageError if there is no such engine: nothing else runs as one.
    """
    if cuda_graph is None:
        return manifest
    compiled = {engine.id for engine in manifest.engines if not TENSORRT.keys().isdisjoint(engine.requires)}
    if not compiled:
        raise UsageError("a CUDA graph was asked for or ruled out, and the bundle holds no TensorRT engine")
    execution = {"cuda_graph": cuda_graph}
    engines = (replace(e, execution=execution) if e.id in compiled else e for e in manifest.engines)
    return replace(manifest, engines=tuple(engines))


def budget_id(budgets: Iterable[Budget], budget: int | str) -> str:
    """The id of the budget called `budget`, or whose only axis has that size; UsageError if there is none."""
    known = {entry.id: entry for entry in budgets}
    for entry in known.values():
        if budget == entry.id or (isinstance(budget, int) and list(entry.axes.values()) == [budget]):
            return entry.id
    raise UsageError(f"the bundle has no budget {budget!r}: it has {', '.join(known)}")
