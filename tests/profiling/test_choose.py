from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from essm_deploy.errors import UnavailableError, UsageError, WorkerError
from essm_deploy.profiling.choose import Choice, choose
from essm_deploy.profiling.quality import Candidate, Quality
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement
from tests.profiling.simulated import Device, measurement

BUDGETS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


def candidates(budgets: tuple[int, ...] = BUDGETS) -> list[Candidate]:
    return [Candidate(budget) for budget in budgets]


def graded() -> list[Candidate]:
    """Quality that rises to K = 8 and falls a little after it, as measured on the keyword sketch."""
    values = dict(zip(BUDGETS, (0.84, 0.87, 0.89, 0.90, 0.91, 0.92, 0.915, 0.91, 0.905, 0.90), strict=True))
    return [Candidate(k, Quality("accuracy", value, retention=value / 0.90)) for k, value in values.items()]


def steady(milliseconds: Callable[[float], float], peak: Callable[[float], int] = lambda k: 2**20) -> Device:
    """A device without noise."""
    device = Device(0, 0, seed=0)

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        device.calls.append((budget, attempt.number))
        return measurement(budget, [milliseconds(float(budget))] * 300, peak_bytes=peak(float(budget)))

    device.measure = measure  # type: ignore[method-assign]
    return device


def run(device: Device, limits: Limits, entries: list[Candidate] | None = None, **options: bool) -> Choice:
    return choose(candidates() if entries is None else entries, limits, device.measure, **options)


@pytest.mark.parametrize("chosen", range(-1, len(BUDGETS)))
def test_every_answer_is_found_within_the_promised_number_of_engines(chosen: int) -> None:
    device = steady(lambda k: k)
    limit = 1.9 if chosen < 0 else BUDGETS[chosen] + 0.5
    choice = run(device, Limits(max_latency_ms=limit))
    assert choice.chosen == (None if chosen < 0 else BUDGETS[chosen])
    assert choice.status == ("nothing_fits" if chosen < 0 else "ok")
    assert len({budget for budget, _ in device.calls}) <= math.ceil(math.log2(len(BUDGETS))) + 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 17, 32])
def test_the_number_of_engines_is_bounded_for_any_number_of_candidates(count: int) -> None:
    for limit in np.arange(0.5, count + 1):
        device = steady(lambda k: k)
        choice = run(device, Limits(max_latency_ms=float(limit)), candidates(tuple(range(1, count + 1))))
        assert choice.chosen == (math.floor(limit) or None)
        assert len({budget for budget, _ in device.calls}) <= math.ceil(math.log2(count)) + 2


def test_a_generous_limit_takes_one_engine() -> None:
    device = steady(lambda k: k)
    assert run(device, Limits(max_latency_ms=100)).chosen == 32
    assert device.calls == [(32, 1)]


def test_exhaustive_measures_every_budget_and_finds_the_same() -> None:
    device = steady(lambda k: k)
    choice = run(device, Limits(max_latency_ms=10), exhaustive=True)
    assert choice.chosen == 8
    assert {budget for budget, _ in device.calls} == set(BUDGETS) == set(choice.measurements)
    assert all(verdict.status == "valid" for verdict in choice.verdicts.values())


def test_both_limits_must_be_met() -> None:
    device = steady(lambda k: k, peak=lambda k: int(k) * 2**20)
    assert run(device, Limits(max_latency_ms=20, max_memory_bytes=6 * 2**20)).chosen == 6
    assert run(device, Limits(max_latency_ms=5.5, max_memory_bytes=20 * 2**20)).chosen == 5


def test_without_limits_the_largest_is_chosen() -> None:
    choice = run(steady(lambda k: k), Limits())
    assert (choice.chosen, choice.status) == (32, "ok")


def test_nothing_fits_says_which_limit_would_admit_what() -> None:
    device = steady(lambda k: k, peak=lambda k: 2**20)
    choice = run(device, Limits(max_latency_ms=1, max_memory_bytes=2**21))
    assert (choice.status, choice.chosen, choice.deciding) == ("nothing_fits", None, 2)
    (way,) = choice.relaxations
    assert (way.limit, way.asked, way.to, way.admits, way.proven) == ("max_latency", 1, 2, 2, True)
    assert "--max-latency 2 ms admits budget 2" in choice.message
    assert run(device, Limits(max_latency_ms=way.to, max_memory_bytes=2**21)).chosen == 2


def test_no_single_limit_helps_where_two_are_missed() -> None:
    choice = run(steady(lambda k: k, peak=lambda k: 2**30), Limits(max_latency_ms=1, max_memory_bytes=2**20))
    assert choice.status == "nothing_fits"
    assert choice.relaxations == ()
    assert {finding.limit for finding in choice.findings if finding.side == "exceeds"} == {"max_latency", "max_memory"}


def test_quality_bounds_are_applied_before_anything_is_measured() -> None:
    device = steady(lambda k: k)
    choice = run(device, Limits(max_latency_ms=3.5, min_retention=0.98), graded())
    assert choice.status == "nothing_fits"
    assert choice.deciding == 4
    assert not {2, 3} & {budget for budget, _ in device.calls}
    assert set(choice.excluded) == {2, 3}


def test_quality_that_no_budget_has_is_answered_without_measuring() -> None:
    device = steady(lambda k: k)
    choice = run(device, Limits(max_latency_ms=100, min_quality=0.95), graded())
    assert device.calls == []
    assert choice.status == "nothing_fits"
    (way,) = choice.relaxations
    assert (way.limit, way.to, way.admits, way.proven) == ("min_quality", 0.92, 8, False)


def test_quality_where_lower_is_better() -> None:
    entries = [Candidate(k, Quality("bpb", 2 - k / 32, direction="lower", retention=1.0)) for k in BUDGETS]
    choice = run(steady(lambda k: k), Limits(min_quality=1.5), entries)
    assert choice.chosen == 32
    assert set(choice.excluded) == {k for k in BUDGETS if k < 16}


def test_an_unmeasured_quality_cannot_meet_a_bound() -> None:
    choice = run(steady(lambda k: k), Limits(min_quality=0.5), [Candidate(7)])
    assert choice.status == "nothing_fits"
    assert "never measured" in choice.message


def test_a_limit_inside_the_interval_is_looked_at_twice_and_then_inconclusive() -> None:
    device = Device(0, 1, seed=3, count=300)

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        device.calls.append((budget, attempt.number))
        spread = np.random.default_rng(int(budget)).permutation(np.linspace(0.5, 1.5, 300))
        return measurement(budget, (float(budget) * spread).tolist(), attempt=attempt.number)

    choice = choose(candidates(), Limits(max_latency_ms=8 * 1.45), measure)
    assert (choice.status, choice.chosen, choice.deciding) == ("inconclusive", 6, 8)
    assert choice.verdicts[8].status == "inconclusive"
    assert choice.verdicts[6].status == "valid"
    assert [number for budget, number in device.calls if budget == 8] == [1, 2]
    assert choice.measurements[8].attempt == 2


def test_a_budget_slower_than_larger_ones_is_measured_again() -> None:
    device = steady(lambda k: k)
    clean = device.measure

    def disturbed(budget: BudgetKey, attempt: Attempt) -> Measurement:
        factor = 20 if (budget, attempt.number) == (6, 1) else 1
        result = clean(budget, attempt)
        return measurement(budget, [value * factor for value in result.samples_ms], attempt=attempt.number)

    assert choose(candidates(), Limits(max_latency_ms=17), disturbed).chosen == 16
    assert (6, 2) in device.calls


def test_an_engine_just_above_the_limit_gets_a_second_look_before_it_is_ruled_out() -> None:
    device = steady(lambda k: k)
    clean = device.measure

    def disturbed(budget: BudgetKey, attempt: Attempt) -> Measurement:
        factor = 1.2 if (budget, attempt.number) == (16, 1) else 1
        result = clean(budget, attempt)
        return measurement(budget, [value * factor for value in result.samples_ms], attempt=attempt.number)

    assert choose(candidates(), Limits(max_latency_ms=17), disturbed).chosen == 16


def test_an_engine_that_meets_the_limit_by_little_gets_a_second_look_before_it_is_ruled_in() -> None:
    device = steady(lambda k: k)
    clean = device.measure

    def lucky(budget: BudgetKey, attempt: Attempt) -> Measurement:
        factor = 0.95 if (budget, attempt.number) == (16, 1) else 1
        result = clean(budget, attempt)
        return measurement(budget, [value * factor for value in result.samples_ms], attempt=attempt.number)

    choice = choose(candidates(), Limits(max_latency_ms=15.5), lucky)
    assert (choice.chosen, choice.status) == (12, "ok")
    assert (12, 2) not in device.calls  # it has a fifth to spare


def test_an_engine_that_fails_is_tried_again_and_then_left_out() -> None:
    device = steady(lambda k: k)
    clean = device.measure

    def failing(budget: BudgetKey, attempt: Attempt) -> Measurement:
        if float(budget) > 12:
            device.calls.append((budget, attempt.number))
            raise WorkerError("the worker was killed by signal 9")
        return clean(budget, attempt)

    choice = choose(candidates(), Limits(max_latency_ms=100), failing)
    assert (choice.status, choice.chosen) == ("ok", 12)
    assert choice.verdicts[16].status == "failed"
    assert "signal 9" in choice.message
    assert (32, 2) in device.calls


def test_nothing_that_can_be_measured_is_an_error_not_an_answer() -> None:
    def failing(budget: BudgetKey, attempt: Attempt) -> Measurement:
        raise WorkerError("no")

    with pytest.raises(WorkerError, match="no"):
        choose(candidates(), Limits(max_latency_ms=1), failing)


def test_too_few_samples_are_inconclusive_and_say_how_many_it_takes() -> None:
    choice = choose(candidates((8,)), Limits(max_latency_ms=10), lambda k, _: measurement(k, [9.0] * 20))
    assert (choice.status, choice.chosen, choice.certain) == ("inconclusive", 8, False)
    assert any("takes 72" in warning for warning in choice.measurements[8].warnings)


def test_a_memory_limit_without_a_memory_figure_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="not available"):
        choose(candidates(), Limits(max_memory_bytes=1), lambda k, _: measurement(k, [1.0], peak_bytes=None))


def test_no_candidates_are_a_usage_error() -> None:
    with pytest.raises(UsageError):
        choose([], Limits(), lambda k, _: measurement(k, [1.0]))


def busy(milliseconds: Callable[[float], float], waited_share: float) -> Device:
    """A device on which other processes keep the processor for that share of the time: one call in thirty gets through."""
    device = steady(milliseconds)

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        samples = [milliseconds(float(budget))] * 290 + [1.0] * 10
        return replace(measurement(budget, samples, attempt=attempt.number), waited_share=waited_share)

    device.measure = measure  # type: ignore[method-assign]
    return device


def test_a_busy_machine_proves_nothing_against_an_engine() -> None:
    choice = run(busy(lambda k: 20 + k, 0.4), Limits(max_latency_ms=10))
    assert (choice.status, choice.chosen, choice.certain) == ("inconclusive", 2, False)
    assert "waited for a processor 40% of the time" in choice.message


def test_no_machine_is_too_busy_for_a_limit_that_no_call_meets() -> None:
    choice = run(busy(lambda k: 20 + k, 0.4), Limits(max_latency_ms=0.5))
    assert (choice.status, choice.chosen) == ("nothing_fits", None)


def test_what_fits_on_a_busy_machine_fits() -> None:
    choice = run(busy(lambda k: k, 0.4), Limits(max_latency_ms=8.5))
    assert (choice.status, choice.chosen, choice.certain) == ("inconclusive", 8, True)
    assert run(busy(lambda k: k, 0.4), Limits(max_latency_ms=50)).status == "ok"


def test_a_little_waiting_is_no_excuse() -> None:
    choice = run(busy(lambda k: 20 + k, 0.01), Limits(max_latency_ms=10))
    assert (choice.status, choice.chosen, choice.certain) == ("nothing_fits", None, False)
