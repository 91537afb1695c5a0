"""Device memory and one stream, over cuda-python: what engines read and write on a GPU, and what is captured to be replayed."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

from essm_deploy.errors import EssmError, UnavailableError
from essm_deploy.runtime.tensors import Array

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")  # cuda-python since 12.6, and before


class Cuda:
    """The CUDA runtime on one device. Every failure is an EssmError that names the call and CUDA's own reason.

    What was allocated is given back by `close`, and by the garbage collector for those who forget.
    """

    def __init__(self, api: Any, index: int) -> None:
        self.index = index
        self._api = api
        self._buffers: dict[str, int] = {}
        self._blocks: dict[int, int] = {}
        self.use()
        self.stream = self._call("cudaStreamCreate")
        self._end = weakref.finalize(self, _give_back, api, self.stream, self._blocks)
        self._end.atexit = False  # the driver cleans up after a process, perhaps before Python does

    @classmethod
    def open(cls, index: int) -> Cuda:
        """The installed cuda-python; UnavailableError with the pip line if there is none."""
        for name in _MODULES:
            try:
                return cls(importlib.import_module(name), index)
            except ImportError:
                continue
        raise UnavailableError("running a TensorRT engine needs cuda-python, not installed here: pip install cuda-python")

    def use(self) -> None:
        """Make the device the calling thread's: every thread begins on the first one."""
        self._call("cudaSetDevice", self.index)

    @property
    def held_bytes(self) -> int:
        """Device memory that was allocated here."""
        return sum(self._blocks.values())

    def block(self, size: int) -> int:
        """The address of `size` fresh bytes on the device."""
        self.use()
        address = int(self._call("cudaMalloc", size))
        self._blocks[address] = size
        return address

    def release(self, address: int) -> None:
        """Give a block back."""
        if self._blocks.pop(address, None) is not None:
            self._call("cudaFree", address)

    def buffer(self, name: str, size: int) -> int:
        """The device address of at least `size` bytes, the same one for `name` until it has to grow."""
        address = self._buffers.get(name, 0)
        if not address or self._blocks[address] < size:
            if address:
                self.release(address)
            address = self._buffers[name] = self.block(size)
        return address

    def write(self, address: int, array: Array) -> None:
        """Copy a C-contiguous host array to the device, in stream order."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)

    def read(self, address: int, array: Array) -> None:
        """Copy from the device to a C-contiguous host array, in stream order: `synchronize` before reading it."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy within the device, in stream order."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", to, source, size, kind, self.stream)

    def synchronize(self) -> None:
        """Wait for everything in the stream."""
        self._call("cudaStreamSynchronize", self.stream)

    def free_bytes(self) -> int:
        """Device memory that nobody has."""
        return int(self._call("cudaMemGetInfo")[0])

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """What `enqueue` puts into the stream, as an executable CUDA graph; nothing runs. None where it cannot be captured."""
        api = self._api
        self._call("cudaStreamBeginCapture", self.stream, api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
        try:
            enqueue()
        except EssmError:
            pass  # the end of the capture says so too
        finally:
            status, graph = api.cudaStreamEndCapture(self.stream)
        if int(status) != 0:
            api.cudaGetLastError()  # a failed capture is no error of the calls that follow
            return None
        status, executable = api.cudaGraphInstantiate(graph, 0)
        self._call("cudaGraphDestroy", graph)
        return executable if int(status) == 0 else None

    def launch(self, graph: Any) -> None:
        """Put a captured graph into the stream."""
        self._call("cudaGraphLaunch", graph, self.stream)

    def event(self) -> Any:
        """A point in the stream that can be marked again and again."""
        return self._call("cudaEventCreate")

    def mark(self, event: Any) -> None:
        """The stream has come here."""
        self._call("cudaEventRecord", event, self.stream)

    def between_ms(self, first: Any, second: Any) -> float:
        """Milliseconds from one event to another, both of which have been waited for."""
        return float(self._call("cudaEventElapsedTime", first, second))

    def close(self) -> None:
        """Give everything back."""
        self._buffers.clear()
        self._end()

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *values = getattr(self._api, name)(*arguments)
        if int(status) != 0:
            reason = self._api.cudaGetErrorString(status)[1]
            shown = reason.decode() if isinstance(reason, bytes) else str(reason)
            raise EssmError(f"{name} failed on the GPU: {shown}")
        return values[0] if len(values) == 1 else values


def _give_back(api: Any, stream: Any, blocks: dict[int, int]) -> None:
    for address in blocks:
        api.cudaFree(address)
    blocks.clear()
    api.cudaStreamDestroy(stream)
