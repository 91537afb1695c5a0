"""Timing one call, host to host, again and again: the loop that every latency in the product comes from.

The clock is `time.perf_counter`, which is monotonic: neither setting the time nor a time server moves it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from statistics import median

import numpy as np

from essm_deploy.errors import InputError
from essm_deploy.runtime.dependence import effective_samples
from essm_deploy.runtime.manifest import TensorInfo
from essm_deploy.runtime.tensors import LENGTHS, Array, minimum

BACK_TO_BACK, PACED = "back_to_back", "paced"
"""The modes of sampling: one call after the other, and one in a given time."""

VARIANTS = 4  # different inputs, called in turn
MAX_SAMPLES = 1_000_000
_REPORT_MS = 250.0
_LEAST_WINDOW = 3


@dataclass(frozen=True)
class WarmUp:
    """How the calls before the first sample went. `settled`: two running medians in a row agreed within the tolerance."""

    iterations: int
    settled: bool
    first_ms: float
    median_ms: float
    seconds: float


@dataclass(frozen=True)
class Support:
    """What a bound of a percentile (a share: 0.95) takes: this many independent samples."""

    fraction: float
    samples: int


@dataclass(frozen=True)
class SamplingPlan:
    """Stop once there are `min_samples`, `min_seconds` and what `support` takes, or after `max_seconds`.

    `pace_ms`: start one call in that time, or at once where the one before took longer.
    """

    min_samples: int
    min_seconds: float
    max_seconds: float
    pace_ms: float | None = None
    support: Support | None = None


def random_inputs(declared: tuple[TensorInfo, ...], *, batch: int, length: int | None, seed: int) -> list[dict[str, Array]]:
    """Seeded inputs as an app would pass them: standard normal numbers, or whole numbers in the declared range.

    `length` replaces the time axis (None keeps the engine's own); `lengths` is left to the runtime. Raises InputError
    where the engine fixes another batch.
    """
    rng = np.random.default_rng(seed)
    infos = [info for info in declared if info.name != LENGTHS]
    return [{info.name: _random(info, batch, length, rng) for info in infos} for _ in range(VARIANTS)]


def warm_up(call: Callable[[], object], *, max_seconds: float, window: int, tolerance: float) -> WarmUp:
    """Call until the median of a window of calls is within `tolerance` of the one before, twice in a row, or time is up."""
    start = time.perf_counter()
    first = timed_ms(call)
    window = max(_LEAST_WINDOW, min(window, int(max_seconds * 1e3 / 4 / max(first, 1e-3))))
    calls, agreeing, previous = 1, 0, None
    current = first
    while agreeing < 2 and time.perf_counter() - start < max_seconds:
        window_ms: list[float] = []
        while len(window_ms) < window and (not window_ms or time.perf_counter() - start < max_seconds):
            window_ms.append(timed_ms(call))
        calls += len(window_ms)
        current = median(window_ms)
        close = previous is not None and abs(current - previous) <= tolerance * previous
        agreeing = agreeing + 1 if close and len(window_ms) == window else 0
        previous = current
    return WarmUp(calls, agreeing >= 2, first, current, time.perf_counter() - start)


def sample(call: Callable[[], object], plan: SamplingPlan) -> Iterator[list[float]]:
    """Time calls in milliseconds by the plan; yields what was taken about every quarter of a second, so that a reader
    can store it. The time that the reader takes is not part of any sample."""
    start = due = time.perf_counter()
    end = _End(plan)
    block, block_ms = list[float](), 0.0
    while not end.reached(time.perf_counter() - start):
        if plan.pace_ms is not None:
            due = max(due + plan.pace_ms / 1e3, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
        block.append(timed_ms(call))
        end.taken.append(block[-1])
        block_ms += max(block[-1], plan.pace_ms or 0.0)
        if block_ms >= _REPORT_MS:
            yield block
            block, block_ms = [], 0.0
    if block:
        yield block


def timed_ms(call: Callable[[], object]) -> float:
    """Milliseconds of one call by the monotonic clock."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def rotating(run: Callable[..., object], inputs: list[dict[str, Array]]) -> Callable[[], object]:
    """`run` with the next of `inputs` at each call."""
    turn = cycle(inputs)
    return lambda: run(**next(turn))


class _End:
    """When sampling is over. How many independent samples there are is counted anew only after a tenth more of them."""

    def __init__(self, plan: SamplingPlan) -> None:
        self.plan = plan
        self.taken = array("d")  # eight bytes a sample: this process's peak memory is measured too
        self._next_count = plan.min_samples

    def reached(self, seconds: float) -> bool:
        plan, count = self.plan, len(self.taken)
        if count >= MAX_SAMPLES or (seconds >= plan.max_seconds and count > 0):
            return True
        return count >= max(plan.min_samples, self._next_count) and seconds >= plan.min_seconds and self._supported()

    def _supported(self) -> bool:
        support = self.plan.support
        if support is None or effective_samples(self.taken, support.fraction) >= support.samples:
            return True
        self._next_count = len(self.taken) + 1 + len(self.taken) // 10
        return False


def _random(info: TensorInfo, batch: int, length: int | None, rng: np.random.Generator) -> Array:
    shape = [batch if axis == 0 else size for axis, size in enumerate(info.shape)]
    if isinstance(info.shape[0], int) and info.shape[0] != batch:
        raise InputError(f"{info.name!r} is compiled for a batch of {info.shape[0]}, a batch of {batch} was asked for")
    if len(shape) > 1 and length is not None:
        shape[1] = length
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape):
        raise InputError(f"{info.name!r} has the free sizes {shape}: say the length to measure")
    if info.dtype.startswith("float"):
        return rng.standard_normal(sizes).astype(info.dtype)
    top = 1 if info.maximum is None else info.maximum
    return rng.integers(minimum(info), top, size=sizes, endpoint=True).astype(info.dtype)
