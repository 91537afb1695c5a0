"""One engine over fixed device addresses, enqueued again and again, and what a call's time goes into."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from essm_deploy.errors import EssmError
from essm_deploy.runtime.cuda_memory import Cuda

PARTS = ("upload_ms", "compute_ms", "download_ms")
"""Of a call on a GPU, as events in the stream tell them apart."""


class Launch:
    """Call it to enqueue the engine of `context`.

    With `as_graph` the first call is an ordinary one and warms up; then what it enqueues is captured once, and later calls
    replay that. A capture holds bare addresses, so each set of addresses has a launch of its own. Where TensorRT or CUDA does
    not allow a capture, every call is an ordinary one, and `graph` stays None.
    """

    def __init__(self, context: Any, cuda: Cuda, addresses: Mapping[str, int], name: str, *, as_graph: bool = False) -> None:
        self.graph: Any = None
        self._context = context
        self._cuda = cuda
        self.addresses = dict(addresses)
        self._name = name
        self._as_graph = as_graph

    def __call__(self) -> None:
        if self.graph is not None:
            self._cuda.launch(self.graph)
            return
        self._enqueue()
        if self._as_graph:
            self._as_graph = False
            if self._capturable():
                self.graph = self._cuda.capture(self._enqueue)

    def _enqueue(self) -> None:
        for name, address in self.addresses.items():
            self._context.set_tensor_address(name, address)
        if not self._context.execute_async_v3(int(self._cuda.stream)):
            raise EssmError(f"engine {self._name!r} failed to start on the GPU")

    def _capturable(self) -> bool:
        """TensorRT-RTX says it beforehand; for classic TensorRT the capture is the test."""
        asked = getattr(self._context, "is_stream_capturable", None)
        return asked is None or bool(asked(int(self._cuda.stream)))


class CallTimer:
    """Four events around a call's uploads, computation and downloads."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._events = [cuda.event() for _ in range(len(PARTS) + 1)]
        self.calls: list[tuple[float, ...]] = []

    def mark(self, index: int) -> None:
        """The stream has come to the border `index`."""
        self._cuda.mark(self._events[index])

    def take(self) -> None:
        """Read the events of a call that has been waited for."""
        pairs = zip(self._events[:-1], self._events[1:], strict=True)
        self.calls.append(tuple(self._cuda.between_ms(first, second) for first, second in pairs))

    def medians(self) -> dict[str, float]:
        """Milliseconds by part, over all calls; empty without any."""
        return {name: median(values) for name, values in zip(PARTS, zip(*self.calls, strict=True), strict=False)}
