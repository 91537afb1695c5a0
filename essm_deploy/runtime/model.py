"""A bundle as an app sees it: named arrays in and out, streams, and labels for a clip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from essm_deploy.errors import InputError, UsageError
from essm_deploy.runtime.engines import EnginePool, budget_id, with_cuda_graph
from essm_deploy.runtime.manifest import Engine, Manifest, read_manifest, verify_files
from essm_deploy.runtime.scores import ranked
from essm_deploy.runtime.sequence import SequenceEngine
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.stream_select import stream_engine
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.tensors import Array

if TYPE_CHECKING:
    from essm_deploy.frontend import LogMel


class Model:
    """An opened bundle: `manifest`, the `engine` in use, and what an app calls.

    `calibration` is the record by which the engine was chosen for this device, None unless `load` was told to calibrate.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        engine: Engine,
        threads: int | None = None,
        calibration: JsonObject | None = None,
    ) -> None:
        self.root = root
        self.manifest = manifest
        self.engine = engine
        self.calibration = calibration
        self.labels: list[str] = list(manifest.model.id2label)
        self._pool = EnginePool.of(root, manifest, threads)
        self._session = self._pool.session(engine.id)
        self._runner = SequenceEngine(root, engine, session=self._session) if engine.kind == "sequence" else None
        self._frontend: LogMel | None = None

    @property
    def provider(self) -> str:
        """The execution provider that runs the engine."""
        return self._session.provider

    @property
    def threads(self) -> int:
        """Threads that one call uses."""
        return self._session.threads

    @property
    def length(self) -> int | None:
        """Steps that one call takes at most; None if the engine takes any number, as stream engines do."""
        return self._runner.length if self._runner else None

    @property
    def frontend(self) -> LogMel | None:
        """What turns a waveform into features, as the model was trained; None if it takes features or tokens as they are."""
        config = self.manifest.model.frontend
        if self._frontend is None and config is not None:
            from essm_deploy.frontend import LogMel  # an app that brings its own features never loads it

            self._frontend = LogMel.from_config(config)
        return self._frontend

    def run(self, **inputs: Any) -> dict[str, Array]:
        """Compute all outputs with a sequence engine; see SequenceEngine.run for shapes and errors."""
        if self._runner is None:
            raise UsageError(f"engine {self.engine.id!r} takes its input piece by piece: call stream() instead of run()")
        return self._runner.run(**inputs)

    def stream(self, batch: int = 1, max_length: int | None = None, budget: int | str | None = None) -> Stream:
        """Open a stream at `budget` (default: that of the engine in use); see Stream for the rest.

        Raises UsageError if the bundle holds no stream engine of that budget.
        """
        wanted = self.engine.budget if budget is None else budget
        chosen = stream_engine(self.manifest, wanted, batch, first=self.engine)
        return Stream(self._pool, chosen, batch=batch, max_length=max_length)

    def classify(self, waveform: Array) -> list[dict[str, Any]]:
        """Rank the labels for one clip: float32 samples [n] at the front end's rate.

        Returns [{"label": str, "score": float}], best first, the scores being softmax probabilities.
        Raises InputError if the bundle has no front end or labels, or if the clip is empty or too long.
        """
        if self.frontend is None or not self.labels:
            raise InputError(f"{self.root} has no front end or no labels, so it cannot classify a clip: call run()")
        features, length = self.frontend(waveform)
        if self._runner is not None:
            return ranked(self.run(features=features, lengths=length)["logits"], self.labels)
        with self.stream(max_length=length) as stream:
            return ranked(stream.push(features[:length]), self.labels)


def load(
    path: str | Path,
    *,
    budget: int | str | None = None,
    engine: str | None = None,
    threads: int | None = None,
    verify: bool = True,
    calibrate: bool = False,
    cuda_graph: bool | None = None,
) -> Model:
    """Open the bundle at `path` and the engine that it holds for `budget` (8 or "k8"), or the one called `engine`.

    `threads` defaults to the physical cores. `verify=False` skips the sha256 of every file, for a bundle that was
    checked before. `calibrate` measures the bundle's budgets on this device, some seconds each, and opens the largest that
    surely meets the bundle's limits; what was found is kept beside the manifest, so that the next load measures nothing.
    `cuda_graph` runs TensorRT engines as a CUDA graph, or does not; the default is how the manifest's figures were measured.
    Raises BundleError (not a bundle, or a newer one), IntegrityError (a file is missing or changed), UsageError (no such
    budget or engine), UnavailableError (this machine lacks what the engine needs) and, of `calibrate`, VerificationError
    (an engine computes something else here) and WorkerError.
    """
    root = Path(path)
    if threads is not None and (isinstance(threads, bool) or not 1 <= threads <= 1024):
        raise UsageError(f"threads is {threads}, expected 1 to 1024")
    if calibrate and (budget is not None or engine is not None):
        raise UsageError("calibrate chooses the budget by measuring: give neither budget nor engine with it")
    manifest = with_cuda_graph(read_manifest(root), cuda_graph)
    chosen = select_engine(manifest, budget=budget, engine=engine)
    if verify:
        verify_files(root, manifest)
    if not calibrate:
        return Model(root, manifest, chosen, threads)
    from essm_deploy.runtime.calibrate import calibrated  # an app that does not calibrate starts no process

    record = calibrated(root, manifest, threads)
    return Model(root, manifest, manifest.engine(record["default"]), threads, record)


def select_engine(manifest: Manifest, *, budget: int | str | None = None, engine: str | None = None) -> Engine:
    """The engine that `load` opens: by name, by budget, or the default. Raises UsageError.

    By budget it is the default engine if it fits, or else the first of the default's kind, or else the first.
    """
    engines = {entry.id: entry for entry in manifest.engines if entry.kind != "anchor"}
    if engine is not None:
        if engine not in engines:
            raise UsageError(f"the bundle has no engine {engine!r}: it has {', '.join(engines)}")
        if budget is not None and engines[engine].budget != budget_id(manifest.budgets, budget):
            raise UsageError(f"engine {engine!r} is not of the budget {budget!r} but of {engines[engine].budget!r}")
        return engines[engine]
    default = engines[manifest.default]
    if budget is None:
        return default
    wanted = budget_id(manifest.budgets, budget)
    fitting = [entry for entry in (default, *engines.values()) if entry.budget == wanted]
    if not fitting:
        raise UsageError(f"the bundle has no engine of the budget {budget!r}")
    return next((entry for entry in fitting if entry.kind == default.kind), fitting[0])
