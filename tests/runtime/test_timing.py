from __future__ import annotations

import time
from itertools import count
from typing import Any

import numpy as np
import pytest

from essm_deploy.errors import InputError
from essm_deploy.runtime import TensorInfo, timing
from essm_deploy.runtime.timing import SamplingPlan, Support, random_inputs, sample, timed_ms, warm_up


def test_random_inputs_are_seeded_and_in_range() -> None:
    declared = (TensorInfo("tokens", "int64", ("batch", 50), maximum=3), TensorInfo("lengths", "int64", ("batch",), 50))
    first, again = (random_inputs(declared, batch=4, length=20, seed=7) for _ in range(2))
    assert [set(inputs) for inputs in first] == [{"tokens"}] * 4
    tokens = np.stack([inputs["tokens"] for inputs in first])
    assert tokens.shape == (4, 4, 20)
    assert (tokens.min(), tokens.max()) == (0, 3)
    assert all((a["tokens"] == b["tokens"]).all() for a, b in zip(first, again, strict=True))
    with pytest.raises(InputError, match="batch of 1"):
        random_inputs((TensorInfo("x", "float32", (1, 5)),), batch=2, length=None, seed=0)
    with pytest.raises(InputError, match="free sizes"):
        random_inputs((TensorInfo("x", "float32", (1, "time")),), batch=1, length=None, seed=0)


def test_warm_up_ends_when_the_median_settles_and_gives_up_at_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    def timings(values: Any) -> Any:
        return lambda call: next(values)

    monkeypatch.setattr("essm_deploy.runtime.timing.timed_ms", timings(iter([9.0, *[5.0] * 4, *[2.0] * 12])))
    settled = warm_up(lambda: None, max_seconds=60, window=4, tolerance=0.03)
    assert (settled.settled, settled.iterations, settled.first_ms, settled.median_ms) == (True, 17, 9.0, 2.0)
    monkeypatch.setattr("essm_deploy.runtime.timing.timed_ms", timings(1.0 + i // 4 % 2 for i in count()))
    restless = warm_up(lambda: None, max_seconds=0.01, window=4, tolerance=0.03)
    assert not restless.settled


def test_sampling_honours_floors_and_ceiling() -> None:
    many = sum(map(len, sample(lambda: None, SamplingPlan(min_samples=10, min_seconds=0.05, max_seconds=1))))
    assert many > 10  # the floor of seconds decides for a fast call
    few = sum(map(len, sample(lambda: timed_ms(_nap), SamplingPlan(min_samples=100, min_seconds=0.0, max_seconds=0.05))))
    assert 1 <= few < 100  # the ceiling decides for a slow one


def test_a_paced_call_starts_no_earlier_than_its_turn() -> None:
    plan = SamplingPlan(min_samples=5, min_seconds=0.0, max_seconds=5, pace_ms=20.0)
    took = timed_ms(lambda: list(sample(lambda: None, plan)))
    assert took >= 5 * 20.0


def test_a_call_longer_than_the_pace_is_followed_at_once_and_not_by_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [5.0, 35.0, 5.0, 5.0, 5.0])
    plan = SamplingPlan(min_samples=5, min_seconds=0.0, max_seconds=9, pace_ms=10.0)
    taken = [value for block in sample(lambda: None, plan) for value in block]
    assert taken == [5.0, 35.0, 5.0, 5.0, 5.0]
    assert clock.started == pytest.approx([10, 20, 55, 65, 75])  # the third is late, the others keep their distance


def test_sampling_stops_when_the_bound_is_supported_and_goes_on_where_slow_calls_come_in_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    independent = (1 + 0.1 * rng.random(3000)).tolist()
    stretches = [value + (140 <= at % 300 < 155) for at, value in enumerate(independent)]  # p95 lies inside one
    plan = SamplingPlan(min_samples=300, min_seconds=0.0, max_seconds=2.0, support=Support(0.95, 72))
    counts = []
    for values in (independent, stretches):
        Clock(monkeypatch, values)
        counts.append(sum(map(len, sample(lambda: None, plan))))
    assert counts[0] == 300
    assert 600 < counts[1] < 3000


def test_sampling_for_a_bound_that_never_comes_ends_at_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, [1.0] * 2000)
    plan = SamplingPlan(min_samples=10, min_seconds=0.0, max_seconds=0.5, support=Support(0.95, 10**6))
    assert sum(map(len, sample(lambda: None, plan))) == 500


class Clock:
    """Time that passes only in calls, each of which takes the next of `values` milliseconds, and in sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
        self.now_ms, self.started, self._values = 0.0, list[float](), iter(values)
        monkeypatch.setattr(timing, "timed_ms", self._call)
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now_ms / 1e3)
        monkeypatch.setattr(timing.time, "sleep", self._sleep)

    def _call(self, call: Any) -> float:
        self.started.append(self.now_ms)
        took = next(self._values)
        self.now_ms += took
        return took

    def _sleep(self, seconds: float) -> None:
        self.now_ms += seconds * 1e3


def _nap() -> None:
    time.sleep(0.005)
