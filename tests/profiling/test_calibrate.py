"""Efficiency factors are found again from the calls that they make."""

from __future__ import annotations

import pytest

from essm_deploy.errors import UsageError
from essm_deploy.profiling.calibrate import calibrate
from essm_deploy.profiling.estimate import Efficiency, Rates, estimate_work
from essm_deploy.profiling.work import GraphWork, NodeWork

RATES = Rates(1e12, 1e11)
TRUE = Efficiency(compute=0.4, memory=0.7, launch_us=5.0, call_us=20.0, source="the truth")


def work(gemms: int, flops: float, moved: float) -> GraphWork:
    compute = [NodeWork(f"gemm{i}", "MatMul", flops, 1e3, True, False) for i in range(gemms)]
    return GraphWork((*compute, NodeWork("copy", "Concat", 1.0, moved, False, False)), 0, 0)


WORKS = [work(1, 1e6, 1e5), work(10, 1e8, 1e6), work(40, 1e6, 1e7), work(4, 1e9, 1e8), work(100, 1e5, 1e4)]


def test_the_factors_that_made_the_calls_are_found_again() -> None:
    found = calibrate([(w, estimate_work(w, RATES, TRUE).latency_ms) for w in WORKS], RATES, "five calls")
    assert found.compute == pytest.approx(0.4, rel=0.02)
    assert found.memory == pytest.approx(0.7, rel=0.02)
    assert found.launch_us == pytest.approx(5.0, rel=0.02)
    assert found.source == "five calls"


def test_what_is_predicted_of_another_call_is_right() -> None:
    found = calibrate([(w, estimate_work(w, RATES, TRUE).latency_ms) for w in WORKS], RATES, "five calls")
    other = work(7, 3e8, 5e7)
    assert estimate_work(other, RATES, found).latency_ms == pytest.approx(
        estimate_work(other, RATES, TRUE).latency_ms, rel=0.02
    )


def test_fewer_calls_than_factors_fix_nothing() -> None:
    with pytest.raises(UsageError, match="at least 4"):
        calibrate([(WORKS[0], 1.0)] * 3, RATES, "too few")
