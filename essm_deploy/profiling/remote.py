"""Running an engine where it will be used, to compare what it answers there with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from essm_deploy.errors import BundleError, WorkerError
from essm_deploy.profiling.worker_process import MAX_RUN_LINE, Launcher, conversation, reconnecting
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.tensors import LENGTHS, Array, describe
from essm_deploy.runtime.wire import decode_arrays, encode_arrays

_START, _LOAD = 120.0, 600.0


@reconnecting
def run_engine(
    launcher: Launcher,
    root: Path,
    engine: Engine,
    inputs: Mapping[str, Array],
    threads: int | None = None,
    *,
    start_seconds: float = _START,
    run_seconds: float = _LOAD,
) -> dict[str, Array]:
    """The outputs of `engine` (files below `root`) for rows of inputs, computed by a fresh worker; see runtime/replay.py.

    Raises the worker's own error (InputError, UnavailableError, ...), and WorkerError if it dies, is silent for longer than
    the seconds given, or answers anything else than arrays of the dtypes and rows that the engine declares.
    """
    placed = launcher.place(root, engine)
    with conversation(launcher, MAX_RUN_LINE) as talk:
        talk.receive("hello", start_seconds)
        talk.send(_request(placed, engine, inputs, threads), run_seconds)
        talk.receive("loaded", run_seconds)
        outputs = _outputs(talk.receive("outputs", run_seconds), engine, _leading(inputs))
        talk.receive("done", start_seconds)
    return outputs


def _request(root: str, engine: Engine, inputs: Mapping[str, Array], threads: int | None) -> JsonObject:
    return {"op": "run", "root": root, "engine": engine.to_json(), "threads": threads, "inputs": encode_arrays(inputs)}


def _leading(inputs: Mapping[str, Array]) -> tuple[int, ...]:
    """Rows and steps."""
    return next((array.shape[:2] for name, array in inputs.items() if name != LENGTHS), ())


def _outputs(message: JsonObject, engine: Engine, leading: tuple[int, ...]) -> dict[str, Array]:
    try:
        outputs = decode_arrays(message.get("outputs"), "the worker's answer")
    except BundleError as error:
        raise WorkerError(str(error)) from None
    declared = {info.name: info for info in engine.outputs}
    wanted = {"logits"} if engine.kind == "stream" else set(declared)
    if set(outputs) != wanted:
        raise WorkerError(f"the worker answered {sorted(outputs)[:8]}, expected {', '.join(sorted(wanted))}")
    for name, array in outputs.items():
        if not _fits(array, declared[name], leading):
            shape = f"{array.dtype.name} {list(array.shape)}"
            raise WorkerError(f"the worker answered {name!r} as {shape}, the engine declares {describe(declared[name])}")
    return outputs


def _fits(array: Array, info: TensorInfo, leading: tuple[int, ...]) -> bool:
    """Dtype and sizes; the rows are those of the input, and so are the steps where there are three axes."""
    if array.dtype.name != info.dtype or array.ndim != len(info.shape):
        return False
    own = 2 if array.ndim > 2 else 1
    sizes = zip(array.shape[own:], info.shape[own:], strict=True)
    return array.shape[:own] == leading[:own] and all(not isinstance(want, int) or have == want for have, want in sizes)
