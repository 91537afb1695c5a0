"""A GPU that is not there: cuda-python's calls and TensorRT's module, as far as the runner uses them.

Nothing in a stream happens before the stream is waited for, as on a device: a copy that is read too early is read wrong. What
is put into a stream while it is captured does not happen at all, but becomes a graph. An engine spoils what it writes before
it reads, so that one whose state is read and written in the same place computes nonsense.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from essm_deploy.runtime import tensorrt
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.cuda_memory import Cuda
from essm_deploy.runtime.manifest import Engine, TensorInfo

DEVICE = CudaDevice(0, "NVIDIA Imaginary 1", "8.6", 8 * 2**30, "13.0")
REQUIRES = {"tensorrt_rtx": "==1.7.1", "compute_capability": ["8.6"]}
KINDS = {"float32": "FLOAT", "int64": "INT64"}


class FakeCuda:
    """Device memory that is host memory. `calls` counts them by name; `failing` names the one that fails."""

    class cudaMemcpyKind:  # noqa: N801
        cudaMemcpyHostToDevice = 1  # noqa: N815
        cudaMemcpyDeviceToHost = 2  # noqa: N815
        cudaMemcpyDeviceToDevice = 3  # noqa: N815

    class cudaStreamCaptureMode:  # noqa: N801
        cudaStreamCaptureModeThreadLocal = 1  # noqa: N815

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.pending: list[Callable[[], None]] = []
        self.captured: list[Callable[[], None]] | None = None
        self.spoiled = False
        self.calls: dict[str, int] = {}
        self.copied: dict[int, int] = {1: 0, 2: 0, 3: 0}
        self.failing = ""
        self.now_ms = 0.0
        self.events: list[float] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("cuda") or isinstance(found, type):
            return found
        self.calls[name] = self.calls.get(name, 0) + 1
        return (lambda *arguments: (2, 0)) if self.failing == name else found

    def put(self, work: Callable[[], None]) -> tuple[int]:
        (self.pending if self.captured is None else self.captured).append(work)
        return (0,)

    def cudaSetDevice(self, index: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaStreamCreate(self) -> tuple[int, int]:  # noqa: N802
        return 0, 7

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802
        block = ctypes.create_string_buffer(b"\xff" * size, size)  # NaN, until somebody writes it
        self.blocks[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cudaFree(self, address: int) -> tuple[int]:  # noqa: N802
        del self.blocks[address]
        return (0,)

    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> tuple[int]:  # noqa: N802
        self.copied[kind] += size
        if kind == 1:  # pageable memory is staged before the call returns
            staged = ctypes.string_at(source, size)
            return self.put(lambda: ctypes.memmove(to, staged, size) and None)
        return self.put(lambda: ctypes.memmove(to, source, size) and None)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        if self.captured is not None:
            self.spoiled = True
            return (0,)
        work, self.pending = self.pending, []
        for each in work:
            each()
        return (0,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:  # noqa: N802
        self.captured, self.spoiled = [], False
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:  # noqa: N802
        work, self.captured = self.captured, None
        return (900, None) if self.spoiled else (0, work)

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:  # noqa: N802
        return 0, list(graph)

    def cudaGraphDestroy(self, graph: Any) -> tuple[int]:  # noqa: N802
        graph.clear()
        return (0,)

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[int]:  # noqa: N802
        self.pending += graph
        return (0,)

    def cudaGetLastError(self) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaEventCreate(self) -> tuple[int, int]:  # noqa: N802
        self.events.append(0.0)
        return 0, len(self.events) - 1

    def cudaEventRecord(self, event: int, stream: int) -> tuple[int]:  # noqa: N802
        return self.put(lambda: self.events.__setitem__(event, self.now_ms))

    def cudaEventElapsedTime(self, first: int, second: int) -> tuple[int, float]:  # noqa: N802
        return 0, self.events[second] - self.events[first]

    def cudaMemGetInfo(self) -> tuple[int, int, int]:  # noqa: N802
        return 0, 2**30 - sum(len(block) for block in self.blocks.values()), 2**30

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"out of memory"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


Compute = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class FakeEngine:
    """A deserialised engine and its context: what the manifest declares, computed by `compute`; batches up to 4."""

    def __init__(self, api: FakeCuda, entry: Engine, compute: Compute, most: int = 4) -> None:
        self.api, self.entry, self.compute, self.most = api, entry, compute, most
        self.infos: dict[str, TensorInfo] = {info.name: info for info in (*entry.inputs, *entry.outputs)}
        self.num_io_tensors = len(self.infos)
        self.addresses: dict[str, int] = {}
        self.batch = 1
        self.enqueued = 0
        self.capturable = True
        self.inspected = '{"Layers": []}'
        self.nvtx_verbosity: Any = None

    def create_execution_context(self) -> FakeEngine:
        return self

    def create_engine_inspector(self) -> FakeEngine:
        return self

    def get_engine_information(self, kind: str) -> str:
        assert kind == "json"
        return self.inspected

    def is_stream_capturable(self, stream: int) -> bool:
        return self.capturable

    def get_tensor_name(self, index: int) -> str:
        return list(self.infos)[index]

    def get_tensor_dtype(self, name: str) -> Named:
        return Named(KINDS[self.infos[name].dtype])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.batch if isinstance(size, str) and self.addresses else size for size in self.declared(name))

    def declared(self, name: str) -> tuple[Any, ...]:
        return tuple(size if isinstance(size, int) or self.addresses else -1 for size in self.infos[name].shape)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.addresses.setdefault(name, 0)
        free = [given for given, size in zip(shape, self.infos[name].shape, strict=True) if isinstance(size, str)]
        self.batch = free[0] if free else self.batch
        return self.batch <= self.most

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        self.enqueued += 1
        views = {name: self.view(info) for name, info in self.infos.items()}
        inputs = [info.name for info in self.entry.inputs]
        self.api.put(lambda: self.work(views, inputs))
        return True

    def work(self, views: dict[str, np.ndarray], inputs: list[str]) -> None:
        for info in self.entry.outputs:
            views[info.name].view(np.uint8)[...] = 0xFF
        results = self.compute({name: views[name].copy() for name in inputs})
        for info in self.entry.outputs:
            views[info.name][...] = results[info.name]
        self.api.now_ms += 2.0

    def view(self, info: TensorInfo) -> np.ndarray:
        shape = tuple(self.batch if isinstance(size, str) else size for size in info.shape)
        size = prod(shape) * np.dtype(info.dtype).itemsize
        memory = (ctypes.c_char * size).from_address(self.addresses[info.name])
        return np.frombuffer(memory, info.dtype).reshape(shape)


class FakeTensorRt:
    """The module; `engines` makes what a plan deserialises to, by the plan's bytes."""

    __version__ = "1.7.1"

    class ILogger:
        pass

    class ProfilingVerbosity:
        NONE = "none"

    class LayerInformationFormat:
        JSON = "json"

    def __init__(self, engines: Callable[[bytes], FakeEngine]) -> None:
        self.engines = engines
        self.opened: list[FakeEngine] = []
        self.opens = True

    def Runtime(self, logger: Any) -> Any:  # noqa: N802
        outer = self

        class Runtime:
            def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine | None:
                if outer.opens:
                    outer.opened.append(outer.engines(plan))
                    return outer.opened[-1]
                logger.log(Named("ERROR"), "CUDA driver version is insufficient for CUDA runtime version")
                return None

        return Runtime()


def install(monkeypatch: pytest.MonkeyPatch, api: FakeCuda, module: FakeTensorRt) -> None:
    """Let this process have that GPU and that TensorRT."""
    monkeypatch.setattr(tensorrt, "required_device", lambda engine: DEVICE)
    monkeypatch.setattr(tensorrt, "check_requirements", lambda engine: None)
    monkeypatch.setattr(tensorrt, "tensorrt_module", lambda engine, name: module)
    monkeypatch.setattr(tensorrt.Cuda, "open", classmethod(lambda cls, index: Cuda(api, index)))


def as_tensorrt(engine: Engine, root: Path, **changes: Any) -> Engine:
    """An engine of ONNX Runtime as one of TensorRT, whose plan names the graph that it computes."""
    plan = root / f"{engine.id}.engine"
    plan.write_bytes(engine.files[0].encode())
    return replace(engine, backend="tensorrt-rtx", files=(plan.name,), graph=engine.files, requires=REQUIRES, **changes)


def graphs_below(api: FakeCuda, root: Path, engines: list[Engine]) -> Callable[[bytes], FakeEngine]:
    """Fake engines that compute what the ONNX graphs named by their plans do."""
    by_plan = {engine.graph[0].encode(): engine for engine in engines}

    def make(plan: bytes) -> FakeEngine:
        entry = by_plan[plan]
        session = onnxruntime.InferenceSession(str(root / entry.graph[0]), providers=["CPUExecutionProvider"])
        names = [info.name for info in entry.outputs]
        return FakeEngine(api, entry, lambda inputs: dict(zip(names, session.run(names, inputs), strict=True)))

    return make
