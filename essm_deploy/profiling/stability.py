"""What makes a sample less trustworthy than its count suggests: drift, two modes, outliers, a wide body, a busy or hot machine.

Everything here is recorded, and what is out of the ordinary is a warning; a warning never fails a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.profiling.statistics import drift, variation
from essm_deploy.profiling.verdict import WAITED_WARNING, Latency
from essm_deploy.units import format_ms

DRIFT_WARNING = 0.10
DEPENDENCE_WARNING = 0.5
OUTLIERS_WARNING = 0.01
SPREAD_WARNING = 0.25
LATE_WARNING = 0.01
SLOWDOWN_WARNING = 0.10
"""How much slower a clock must have become."""

_FAR_OUT = 3.0  # Tukey, Exploratory Data Analysis, 2D: beyond the quartiles by three times their distance
_NOTABLE = 1.25  # of the median: what is far out of a very narrow body may still be nothing to care about
_SEPARATION = 5.0
"""Ashman's D (Ashman, Bird and Zepf 1994) of both sides of a split. One normal body cut in two has 2.7, a uniform one 3.5."""

_NOT_THE_TAIL = 0.99
_LEAST_SHARE = 0.10
_LEAST_DISTANCE = 0.05
_LEAST_COUNT = 40


@dataclass(frozen=True)
class Modes:
    """Two groups of calls: their medians in milliseconds, and the share of the calls that are in the slower one."""

    fast: float
    slow: float
    slow_share: float


@dataclass(frozen=True)
class Stability:
    """Figures of one sequence of samples.

    `drift`: relative change of the median from the first half to the second. `variation`: standard deviation over mean, of all
    samples and (`body_variation`) of those that are no outliers. An outlier lies above the upper quartile by more than three
    times the distance of the quartiles, and above 1.25 medians; `largest` is the slowest call over the median.
    """

    drift: float
    variation: float
    body_variation: float
    outlier_share: float
    outlier_from_ms: float
    largest: float
    modes: Modes | None

    @classmethod
    def of(cls, samples: Sequence[float]) -> Stability:
        """Of samples in milliseconds in the order in which they were taken; at least one."""
        values = np.asarray(samples, dtype=np.float64)
        lower, median, upper = (float(q) for q in np.percentile(values, [25, 50, 75]))
        fence = max(upper + _FAR_OUT * (upper - lower), _NOTABLE * median)
        body = values[values <= fence]
        return cls(
            drift=drift(samples),
            variation=variation(samples),
            body_variation=variation(body.tolist()),
            outlier_share=1.0 - len(body) / len(values),
            outlier_from_ms=fence,
            largest=float(values.max()) / median if median > 0 else 1.0,
            modes=two_modes(values[values <= np.quantile(values, _NOT_THE_TAIL)]),
        )

    def to_json(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def two_modes(values: NDArray[np.float64]) -> Modes | None:
    """The two groups that the values fall into, if they do: a tenth of them at least in each, far apart for their widths.

    The split is Otsu's (1979): the one with the largest variance between the groups, of the logarithms.
    """
    logs = np.log(np.sort(values[values > 0]))
    count = len(logs)
    if count < _LEAST_COUNT:
        return None
    least = math.ceil(_LEAST_SHARE * count)
    sizes = np.arange(1, count, dtype=np.float64)
    sums = np.cumsum(logs)[:-1]
    between = (sums - sizes / count * logs.sum()) ** 2 / (sizes * (count - sizes))
    at = 1 + int(np.argmax(between))
    fast, slow = logs[:at], logs[at:]
    if min(len(fast), len(slow)) < least or _separation(fast, slow) < _SEPARATION:
        return None
    low, high = float(np.exp(np.median(fast))), float(np.exp(np.median(slow)))
    return Modes(low, high, len(slow) / count) if high > (1 + _LEAST_DISTANCE) * low else None


def stability_warnings(samples: Sequence[float], latency: Latency, waited_share: float | None = None) -> list[str]:
    """One sentence for each figure of the samples that is out of the ordinary."""
    found = Stability.of(samples)
    return [*_contention(waited_share, None), *_shape(found), *_worth(latency)]


def machine_warnings(stolen_share: float | None, throttling: Mapping[str, Any]) -> list[str]:
    """What the machine did meanwhile; `throttling` is what a worker sends of it (runtime/throttling.py), checked."""
    return [*_contention(None, stolen_share), *_throttled(throttling)]


def pace_warnings(samples: Sequence[float], pace_ms: float) -> list[str]:
    """Whether the calls are too long for the pace."""
    late = sum(value > pace_ms for value in samples) / len(samples)
    if late <= LATE_WARNING:
        return []
    return [f"pace: {late:.0%} of the calls took longer than the pace of {format_ms(pace_ms)}, so that the next one began late"]


def _separation(fast: NDArray[np.float64], slow: NDArray[np.float64]) -> float:
    width = math.sqrt((float(fast.var()) + float(slow.var())) / 2)
    distance = abs(float(slow.mean()) - float(fast.mean()))
    return math.inf if width == 0 else distance / width


def _contention(waited: float | None, stolen: float | None) -> Iterator[str]:
    if waited is not None and waited > WAITED_WARNING:
        yield f"contention: the process waited for a processor {waited:.0%} of the time"
    if stolen is not None and stolen > WAITED_WARNING:
        yield f"contention: the hypervisor gave {stolen:.0%} of the processors' time to other machines"


def _shape(found: Stability) -> Iterator[str]:
    if abs(found.drift) > DRIFT_WARNING:
        yield (f"drift: the median of the second half differs by {found.drift:+.0%} from the first (CV {found.variation:.0%})")
    if found.modes is not None:
        modes = found.modes
        fast, slow = format_ms(modes.fast), format_ms(modes.slow)
        yield f"bimodality: {1 - modes.slow_share:.0%} of the calls take about {fast} and {modes.slow_share:.0%} about {slow}"
    if found.outlier_share > OUTLIERS_WARNING and (found.modes is None or found.modes.slow < found.outlier_from_ms):
        beyond = format_ms(found.outlier_from_ms)
        yield f"outliers: {found.outlier_share:.1%} of the calls took longer than {beyond}, up to {found.largest:.1f} medians"
    if found.body_variation > SPREAD_WARNING:
        yield f"spread: the calls that are no outliers have a coefficient of variation of {found.body_variation:.0%}"


def _worth(latency: Latency) -> Iterator[str]:
    if latency.effective_samples < DEPENDENCE_WARNING * latency.samples:
        yield f"dependence: slow calls came in stretches, {latency.samples} samples count as {latency.effective_samples:.0f}"
    if latency.upper is None:
        wanted = math.ceil(latency.needed_samples * latency.samples / latency.effective_samples)
        yield (
            f"support: {latency.statistic} has no upper bound, that takes {latency.needed_samples} independent samples and "
            f"there are {latency.effective_samples:.0f}: about {wanted} calls in place of {latency.samples}"
        )


def _throttled(throttling: Mapping[str, Any]) -> Iterator[str]:
    events = throttling.get("throttle_events")
    if events:
        yield f"throttling: the hardware was throttled {events} times meanwhile"
    if (lost := _lost(throttling.get("ceiling_khz"))) > 0:
        yield f"throttling: the highest allowed clock fell by {lost:.0%} meanwhile"
    elif (lost := _lost(throttling.get("frequency_khz"))) > SLOWDOWN_WARNING:
        yield f"throttling: the processor's clock fell by {lost:.0%} meanwhile"
    steps = throttling.get("cooling_steps")
    if steps and steps["after"] > steps["before"]:
        yield f"throttling: cooling slowed a processor down meanwhile (step {steps['before']} to {steps['after']})"
    if throttling.get("gpu_slowdowns"):
        yield f"throttling: the GPU's clocks are held down: {', '.join(throttling['gpu_slowdowns'])}"


def _lost(pair: Mapping[str, float] | None) -> float:
    return 1 - pair["after"] / pair["before"] if pair and pair["before"] > 0 else 0.0
