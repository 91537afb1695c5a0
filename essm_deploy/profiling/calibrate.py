"""Efficiency factors from what was measured: the four numbers of the roofline that fit recorded calls best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from essm_deploy.errors import UsageError
from essm_deploy.profiling.estimate import Efficiency, Rates, estimate_work
from essm_deploy.profiling.work import GraphWork

_LOWER = (0.01, 0.01, 1e-3, 1e-3)
_UPPER = (1.0, 1.0, 1e3, 1e4)
"""Of the shares and the microseconds: no kernel is faster than the rates."""
_START = (0.5, 0.5, 2.0, 10.0)


def calibrate(measured: Sequence[tuple[GraphWork, float]], rates: Rates, source: str) -> Efficiency:
    """The factors that minimize the squared logarithm of estimate / measured over (work of a graph, milliseconds of a call).

    `source` says what was measured. At least four graphs (UsageError): there are four factors.
    """
    if len(measured) < len(_START):
        raise UsageError(f"{len(measured)} measured engine(s) cannot fix {len(_START)} factors: measure at least {len(_START)}")

    def errors(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        efficiency = _efficiency(logarithms, source)
        return np.array([np.log(estimate_work(work, rates, efficiency).latency_ms / ms) for work, ms in measured])

    bounds = (np.log(_LOWER), np.log(_UPPER))
    found = least_squares(errors, np.log(_START), bounds=bounds)
    return _efficiency(found.x, source)


def _efficiency(logarithms: NDArray[np.float64], source: str) -> Efficiency:
    compute, memory, launch_us, call_us = (float(value) for value in np.exp(logarithms))
    return Efficiency(compute, memory, launch_us, call_us, source)
