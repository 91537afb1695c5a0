"""Opening an engine: one class per backend, behind one small protocol.

All options of an ONNX Runtime session are decided in `_options`. The execution provider is named, not preferred: a
session that came up on another one is an error, because its speed and its rounding are another engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnxruntime

from essm_deploy.errors import BuildError, BundleError, EssmError, UnavailableError
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.cuda_state import DeviceState
from essm_deploy.runtime.files import resolve_file
from essm_deploy.runtime.host import physical_cores
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.onnx_files import external_locations
from essm_deploy.runtime.requirements import DEFAULT_PROVIDER, check_requirements, provider_of
from essm_deploy.runtime.tensors import Array, check_inputs

_ORT_DTYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


_PROVIDER_OPTIONS = {"CUDAExecutionProvider": {"use_tf32": "0"}}  # fp32 means fp32; it is on by default


class Session(Protocol):
    """An opened engine. `provider` is what really runs it, `threads` what it was given."""

    provider: str
    threads: int

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, host to host."""

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Fix the arrays that the engine reads and writes, once; each call of the result computes from one to the other."""


@runtime_checkable
class DeviceSession(Session, Protocol):
    """A session on a device with memory of its own, in which a stream's state can stay."""

    device: CudaDevice

    def device_state(self, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> DeviceState:
        """Memory there for two sets of the float32 tensors of these names and shapes."""

    def bind_carried(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], state: DeviceState, current: int, written: str
    ) -> Callable[[], None]:
        """`bind` where set `current` of the state is read and the other one, its names behind `written`, is written."""


class SessionFactory(Protocol):
    """What a backend registers: opens `engine`, whose files lie below `root`."""

    def __call__(self, root: Path, engine: Engine, threads: int | None) -> Session: ...


class OrtSession:
    """An engine opened in ONNX Runtime.

    `root` is the bundle; `threads` (intra-op) defaults to the physical cores that this process may use. Without `optimized`,
    nodes are run as the graph has them, without fusions.
    Raises UnavailableError (a requirement is not met), IntegrityError (a file is missing), BundleError (graph and
    manifest disagree, or the graph reads a file outside the engine's own list) and BuildError (ONNX Runtime refuses the
    graph).
    """

    def __init__(self, root: Path, engine: Engine, threads: int | None = None, *, optimized: bool = True) -> None:
        check_requirements(engine)
        self.engine = engine
        self.threads = physical_cores() if threads is None else threads
        wanted = provider_of(engine.requires)
        graph = resolve_file(root, engine.files[0])
        _check_external_data(root, graph, engine)
        options = _options(self.threads, wanted)
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = _open(graph, options, wanted)
        self.provider = _check_provider(self._session, engine, wanted)
        _check_signature(self._session, engine)
        self._outputs = [info.name for info in engine.outputs]
        self._bound = False

    @property
    def execution(self) -> dict[str, bool]:
        """How the calls so far were made, for the record of a measurement; see TensorRtSession.execution."""
        copied = self.provider != DEFAULT_PROVIDER
        return {"cuda_graph": False, "io_binding": self._bound, "transfers": copied, "state_on_device": False}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs. Raises InputError if the arrays are not those that the manifest declares."""
        check_inputs(inputs, self.engine.inputs)
        try:
            outputs = self._session.run(self._outputs, dict(inputs))
        except Exception as error:  # ONNX Runtime raises plain Exceptions of its own binding
            raise EssmError(f"engine {self.engine.id!r} failed in onnxruntime: {_first_line(error)}") from None
        return {name: np.asarray(value) for name, value in zip(self._outputs, outputs, strict=True)}

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Bind C-contiguous host arrays of the declared dtypes and shapes; no input may share memory with an output.

        The arrays are not copied: they are read and written in place by every call, which raises EssmError where ONNX
        Runtime fails.
        """
        self._bound = True
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        run, kept = self._session.run_with_iobinding, (dict(inputs), dict(outputs))

        def call(_kept: object = kept) -> None:  # the binding holds bare pointers: the arrays live as long as the call
            try:
                run(binding)
            except Exception as error:
                raise EssmError(f"engine {self.engine.id!r} failed in onnxruntime: {_first_line(error)}") from None

        return call


def _tensorrt_session(root: Path, engine: Engine, threads: int | None) -> Session:
    from essm_deploy.runtime.tensorrt import TensorRtSession  # a device without a GPU never loads it

    return TensorRtSession(root, engine, threads)


BACKENDS: dict[str, SessionFactory] = {
    "onnxruntime": OrtSession,
    "tensorrt": _tensorrt_session,
    "tensorrt-rtx": _tensorrt_session,
}


def open_session(root: Path, engine: Engine, threads: int | None = None) -> Session:
    """Open `engine` with the backend that it names; UnavailableError if this installation has none of that name."""
    factory = BACKENDS.get(engine.backend)
    if factory is None:
        raise UnavailableError(
            f"engine {engine.id!r} needs the backend {engine.backend!r}, this installation has {', '.join(sorted(BACKENDS))}"
        )
    return factory(root, engine, threads)


def _options(threads: int, provider: str) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    if provider != DEFAULT_PROVIDER:
        # ONNX Runtime calls this option contradictory when the CPU provider is the one that was asked for.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def _open(graph: Path, options: onnxruntime.SessionOptions, provider: str) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=[(provider, _PROVIDER_OPTIONS.get(provider, {}))])
        session.disable_fallback()  # the Python layer's own retry on other providers
        return session
    except Exception as error:
        raise BuildError(f"onnxruntime {onnxruntime.__version__} cannot open {graph}: {_first_line(error)}") from None


def _check_provider(session: onnxruntime.InferenceSession, engine: Engine, wanted: str) -> str:
    used = str(session.get_providers()[0])
    if used != wanted:
        raise UnavailableError(
            f"engine {engine.id!r} was built for {wanted}, onnxruntime opened it on {used}: no fallback is allowed"
        )
    return used


def _check_external_data(root: Path, graph: Path, engine: Engine) -> None:
    vouched = {resolve_file(root, path) for path in engine.files}
    for location in external_locations(graph):
        if (graph.parent / location).resolve() not in vouched:
            raise BundleError(f"{graph} reads {location!r}, which is not among the files of engine {engine.id!r}")


def _check_signature(session: onnxruntime.InferenceSession, engine: Engine) -> None:
    _compare("inputs", session.get_inputs(), engine.inputs, engine.id)
    _compare("outputs", session.get_outputs(), engine.outputs, engine.id)


def _compare(side: str, found: list[Any], declared: tuple[TensorInfo, ...], engine: str) -> None:
    actual = {node.name: node for node in found}
    if set(actual) != {info.name for info in declared}:
        raise BundleError(f"the graph of engine {engine!r} has the {side} {sorted(actual)}, the manifest says otherwise")
    for info in declared:
        node = actual[info.name]
        if _ORT_DTYPES.get(node.type) != info.dtype or not _same_shape(node.shape, info.shape):
            raise BundleError(
                f"the graph of engine {engine!r} has {info.name!r} as {node.type} {node.shape}, "
                f"the manifest says {info.dtype} {list(info.shape)}"
            )


def _same_shape(actual: list[Any], declared: tuple[int | str, ...]) -> bool:
    if len(actual) != len(declared):
        return False
    return all(not isinstance(have, int) or have == want for have, want in zip(actual, declared, strict=True))


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
