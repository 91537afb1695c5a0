"""Device memory and one stream, over cuda-python: what an engine reads and writes on a GPU."""

from __future__ import annotations

import importlib
from typing import Any

from essm_deploy.errors import EssmError, UnavailableError
from essm_deploy.runtime.tensors import Array

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")  # cuda-python since 12.6, and before


class Cuda:
    """The CUDA runtime on one device. Every failure is an EssmError that names the call and CUDA's own reason."""

    def __init__(self, api: Any, index: int) -> None:
        self._api = api
        self._buffers: dict[str, tuple[int, int]] = {}
        self._call("cudaSetDevice", index)
        self.stream = self._call("cudaStreamCreate")

    @classmethod
    def open(cls, index: int) -> Cuda:
        """The installed cuda-python; UnavailableError with the pip line if there is none."""
        for name in _MODULES:
            try:
                return cls(importlib.import_module(name), index)
            except ImportError:
                continue
        raise UnavailableError("running a TensorRT engine needs cuda-python, not installed here: pip install cuda-python")

    def buffer(self, name: str, size: int) -> int:
        """The device address of at least `size` bytes, the same one for `name` until it has to grow."""
        address, capacity = self._buffers.get(name, (0, 0))
        if capacity < size:
            if address:
                self._call("cudaFree", address)
            address = int(self._call("cudaMalloc", size))
            self._buffers[name] = (address, size)
        return address

    def upload(self, name: str, array: Array) -> int:
        """Copy a C-contiguous host array to its buffer, in stream order; returns the address."""
        address = self.buffer(name, array.nbytes)
        kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)
        return address

    def download(self, name: str, array: Array) -> None:
        """Copy a buffer to a C-contiguous host array, in stream order: `synchronize` before reading it."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, self._buffers[name][0], array.nbytes, kind, self.stream)

    def synchronize(self) -> None:
        """Wait for everything in the stream."""
        self._call("cudaStreamSynchronize", self.stream)

    def free_bytes(self) -> int:
        """Device memory that nobody has."""
        return int(self._call("cudaMemGetInfo")[0])

    def close(self) -> None:
        """Give everything back."""
        for address, _ in self._buffers.values():
            self._call("cudaFree", address)
        self._buffers.clear()
        self._call("cudaStreamDestroy", self.stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *values = getattr(self._api, name)(*arguments)
        if int(status) != 0:
            reason = self._api.cudaGetErrorString(status)[1]
            shown = reason.decode() if isinstance(reason, bytes) else str(reason)
            raise EssmError(f"{name} failed on the GPU: {shown}")
        return values[0] if len(values) == 1 else values
