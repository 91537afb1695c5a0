"""A bundle as an app sees it: named arrays in, named arrays out, and labels for a clip."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from essm_deploy.errors import EssmError, InputError, UnavailableError, UsageError
from essm_deploy.runtime.manifest import Engine, Manifest, TensorInfo, read_manifest, verify_files
from essm_deploy.runtime.session import open_session
from essm_deploy.runtime.tensors import LENGTHS, Array, check_names, describe

if TYPE_CHECKING:
    from essm_deploy.frontend import LogMel


class SequenceEngine:
    """A whole-sequence engine that takes shorter inputs: they are padded on the right, and `lengths` says where they
    end.

    Every input except `lengths` is [batch, time, ...]; the time axis is fixed when the engine is built. An output with
    a time axis ([batch, time, ...], at least three axes) is cut back to the input's length.
    """

    def __init__(self, root: Path, engine: Engine, threads: int | None = None) -> None:
        if engine.kind != "sequence":
            raise UnavailableError(f"engine {engine.id!r} is a {engine.kind} engine, this version runs sequence engines only")
        self.engine = engine
        self.session = open_session(root, engine, threads)
        self._sequences = tuple(info for info in engine.inputs if info.name != LENGTHS)
        self._takes_lengths = len(self._sequences) < len(engine.inputs)
        self.length = _fixed_length(self._sequences)

    def run(self, **inputs: Any) -> dict[str, Array]:
        """Compute all outputs for arrays [time, ...] or [batch, time, ...]; without a batch axis, the outputs have
        none.

        `lengths` ([batch], or one number) may be given where only the first steps of an input count; it defaults to the
        inputs' own length. Raises InputError for anything that the engine cannot take, longer inputs among it.
        """
        lengths = inputs.pop(LENGTHS, None) if self._takes_lengths else None
        check_names(inputs, self._sequences)
        arrays, batched = _batched({name: np.asarray(value) for name, value in inputs.items()}, self._sequences)
        batch, length = self._common_size(arrays)
        feed = {name: self._pad(array) for name, array in arrays.items()}
        if self._takes_lengths:
            feed[LENGTHS] = self._lengths(lengths, batch, length)
        outputs = self.session.run(feed)
        return {name: self._trim(value, length, batched) for name, value in outputs.items()}

    def _common_size(self, arrays: Mapping[str, Array]) -> tuple[int, int]:
        shapes = {array.shape[:2] for array in arrays.values()}
        if len(shapes) != 1:
            raise InputError(f"the inputs differ in batch or length: {sorted(shapes)}")
        batch, length = shapes.pop()
        if length == 0 or batch == 0:
            raise InputError("the input is empty: the engine takes at least one step")
        if self.length is not None and length > self.length:
            raise InputError(f"the input has {length} steps, engine {self.engine.id!r} takes at most {self.length}")
        return batch, length

    def _pad(self, array: Array) -> Array:
        missing = 0 if self.length is None else self.length - array.shape[1]
        if missing == 0:
            return array
        return np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))

    def _lengths(self, given: Any, batch: int, length: int) -> Array:
        info = next(info for info in self.engine.inputs if info.name == LENGTHS)
        if given is None:
            return np.full(batch, length, dtype=info.dtype)
        lengths = np.atleast_1d(np.asarray(given))
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
            raise InputError(f"'lengths' is {lengths.dtype.name} {list(lengths.shape)}, expected {batch} whole numbers")
        if lengths.min() < 1 or lengths.max() > length:
            raise InputError(f"'lengths' holds {int(lengths.min())} to {int(lengths.max())}, expected 1 to {length}")
        return lengths.astype(info.dtype)

    def _trim(self, value: Array, length: int, batched: bool) -> Array:
        if value.ndim >= 3 and value.shape[1] == self.length:
            value = value[:, :length]
        return value if batched else value[0]


class Model:
    """An opened bundle: `manifest`, the `engine` in use, and what an app calls."""

    def __init__(self, root: Path, manifest: Manifest, engine: Engine, threads: int | None = None) -> None:
        self.root = root
        self.manifest = manifest
        self.engine = engine
        self.labels: list[str] = list(manifest.model.id2label)
        self._runner = SequenceEngine(root, engine, threads)
        self._frontend: LogMel | None = None

    @property
    def provider(self) -> str:
        """The execution provider that runs the engine."""
        return self._runner.session.provider

    @property
    def threads(self) -> int:
        """Threads that one call uses."""
        return self._runner.session.threads

    @property
    def length(self) -> int | None:
        """Steps that one call takes at most; None if the engine takes any number."""
        return self._runner.length

    @property
    def frontend(self) -> LogMel | None:
        """What turns a waveform into features, as the model was trained; None if it takes features or tokens as they are."""
        config = self.manifest.model.frontend
        if self._frontend is None and config is not None:
            from essm_deploy.frontend import LogMel  # an app that brings its own features never loads it

            self._frontend = LogMel.from_config(config)
        return self._frontend

    def run(self, **inputs: Any) -> dict[str, Array]:
        """Compute all outputs; see SequenceEngine.run for shapes and errors."""
        return self._runner.run(**inputs)

    def classify(self, waveform: Array) -> list[dict[str, Any]]:
        """Rank the labels for one clip: float32 samples [n] at the front end's rate.

        Returns [{"label": str, "score": float}], best first, the scores being softmax probabilities.
        Raises InputError if the bundle has no front end or labels, or if the clip is empty or too long.
        """
        if self.frontend is None or not self.labels:
            raise InputError(f"{self.root} has no front end or no labels, so it cannot classify a clip: call run()")
        features, length = self.frontend(waveform)
        logits = self.run(features=features, lengths=length)["logits"].astype(np.float64)
        if logits.shape != (len(self.labels),) or not np.isfinite(logits).all():
            raise EssmError(f"engine {self.engine.id!r} gave no finite logit for each of the {len(self.labels)} labels")
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        order = np.argsort(-scores, kind="stable")
        return [{"label": self.labels[index], "score": float(scores[index])} for index in order]


def load(
    path: str | Path,
    *,
    budget: int | str | None = None,
    engine: str | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Model:
    """Open the bundle at `path` and the engine that it holds for `budget` (8 or "k8"), or the one called `engine`.

    `threads` defaults to the physical cores. `verify=False` skips the sha256 of every file, for a bundle that was
    checked before. Raises BundleError (not a bundle, or a newer one), IntegrityError (a file is missing or changed),
    UsageError (no such budget or engine) and UnavailableError (this machine lacks what the engine needs).
    """
    root = Path(path)
    if threads is not None and (isinstance(threads, bool) or not 1 <= threads <= 1024):
        raise UsageError(f"threads is {threads}, expected 1 to 1024")
    manifest = read_manifest(root)
    chosen = select_engine(manifest, budget=budget, engine=engine)
    if verify:
        verify_files(root, manifest)
    return Model(root, manifest, chosen, threads)


def select_engine(manifest: Manifest, *, budget: int | str | None = None, engine: str | None = None) -> Engine:
    """The engine that `load` opens: by name, by budget (the default engine first), or the default. Raises UsageError."""
    engines = {entry.id: entry for entry in manifest.engines}
    if engine is not None:
        if engine not in engines:
            raise UsageError(f"the bundle has no engine {engine!r}: it has {', '.join(engines)}")
        if budget is not None and engines[engine].budget != _budget_id(manifest, budget):
            raise UsageError(f"engine {engine!r} is not of the budget {budget!r} but of {engines[engine].budget!r}")
        return engines[engine]
    default = engines[manifest.default]
    if budget is None:
        return default
    wanted = _budget_id(manifest, budget)
    for entry in (default, *manifest.engines):
        if entry.budget == wanted and entry.kind == "sequence":
            return entry
    raise UsageError(f"the bundle has no sequence engine of the budget {budget!r}")


def _budget_id(manifest: Manifest, budget: int | str) -> str:
    for entry in manifest.budgets:
        if budget == entry.id or (isinstance(budget, int) and list(entry.axes.values()) == [budget]):
            return entry.id
    known = ", ".join(entry.id for entry in manifest.budgets)
    raise UsageError(f"the bundle has no budget {budget!r}: it has {known}")


def _fixed_length(infos: tuple[TensorInfo, ...]) -> int | None:
    for info in infos:
        if len(info.shape) >= 2 and isinstance(info.shape[1], int):
            return info.shape[1]
    return None


def _batched(arrays: dict[str, Array], infos: tuple[TensorInfo, ...]) -> tuple[dict[str, Array], bool]:
    missing = set()
    for info in infos:
        rank = arrays[info.name].ndim
        if rank not in (len(info.shape), len(info.shape) - 1) or len(info.shape) < 2:
            raise InputError(f"{info.name!r} has the shape {list(arrays[info.name].shape)}, the engine takes {describe(info)}")
        missing.add(len(info.shape) - rank)
    if len(missing) != 1:
        raise InputError("some inputs have a batch axis and some have none: give it to all or to none")
    if missing == {0}:
        return arrays, True
    return {name: array[np.newaxis] for name, array in arrays.items()}, False
