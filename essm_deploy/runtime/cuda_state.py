"""What a stream carries from call to call, in GPU memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from essm_deploy.runtime.cuda_memory import Cuda
from essm_deploy.runtime.tensors import Array

_ITEM = 4  # bytes of a float32, of which all carried tensors are


class DeviceState:
    """Two sets of the carried float32 tensors: an engine reads one and writes the other, then they swap.

    Never one set for both: engines that alias their state under CUDA graphs have given wrong results. A third set, made when
    it is first needed, keeps what a push of several chunks may have to be taken back to.
    """

    def __init__(self, cuda: Cuda, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self.index = cuda.index
        self.shapes = dict(shapes)
        self._cuda = cuda
        self._sizes = {name: _ITEM * prod(shape) for name, shape in shapes}
        self.sets: tuple[dict[str, int], dict[str, int]] = (self._blocks(), self._blocks())
        self._kept: dict[str, int] = {}

    def upload(self, current: int, arrays: Mapping[str, Array]) -> None:
        """Fill a set from the host, and wait."""
        for name, address in self.sets[current].items():
            self._cuda.write(address, arrays[name])
        self._cuda.synchronize()

    def download(self, current: int, arrays: Mapping[str, Array]) -> None:
        """Copy a set into host arrays, and wait."""
        for name, address in self.sets[current].items():
            self._cuda.read(address, arrays[name])
        self._cuda.synchronize()

    def keep(self, current: int) -> None:
        """Copy a set aside, on the device."""
        self._kept = self._kept or self._blocks()
        self._copy(self._kept, self.sets[current])

    def give_back(self, current: int) -> None:
        """Fill a set with what was kept last."""
        self._copy(self.sets[current], self._kept)

    def release(self) -> None:
        """Free the memory; nothing else may be asked for afterwards."""
        for blocks in (*self.sets, self._kept):
            for address in blocks.values():
                self._cuda.release(address)

    def _blocks(self) -> dict[str, int]:
        return {name: self._cuda.block(size) for name, size in self._sizes.items()}

    def _copy(self, to: Mapping[str, int], source: Mapping[str, int]) -> None:
        for name, size in self._sizes.items():
            self._cuda.copy(to[name], source[name], size)
        self._cuda.synchronize()
