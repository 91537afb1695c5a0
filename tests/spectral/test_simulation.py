"""Past the filters' length: what leaves the window leaves the state, in float64 and in float32."""

from __future__ import annotations

import numpy as np
import pytest

from essm_deploy.errors import InputError
from essm_deploy.spectral.bank import hankel_bank
from essm_deploy.spectral.realization import Realization, realize
from essm_deploy.spectral.simulation import relative_errors, restart_start, simulate, windowed_convolution

LENGTH = 512
CHANNELS = 16


@pytest.fixture(scope="module")
def realization() -> Realization:
    found = realize(hankel_bank(LENGTH, CHANNELS))
    assert isinstance(found, Realization)
    return found


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8 * LENGTH, 2))


@pytest.fixture(scope="module")
def expected(inputs: np.ndarray) -> np.ndarray:
    return windowed_convolution(hankel_bank(LENGTH, CHANNELS).filters, inputs)


def test_the_convolution_by_fft_is_the_sum_of_its_definition() -> None:
    rng = np.random.default_rng(1)
    filters, inputs = rng.standard_normal((2, 5)), rng.standard_normal((11, 3))
    direct = np.zeros((11, 2, 3))
    for t in range(11):
        for lag in range(min(5, t + 1)):
            direct[t] += filters[:, lag, None] * inputs[t - lag]
    np.testing.assert_allclose(windowed_convolution(filters, inputs), direct, atol=1e-13)


def test_window_in_float64_holds_the_tolerance_to_eight_lengths(
    realization: Realization, inputs: np.ndarray, expected: np.ndarray
) -> None:
    # The tolerance of the fit, for signals that are not an impulse.
    assert relative_errors(simulate(realization, inputs, anchor=0), expected).max() <= 2e-7


def test_window_in_float32_with_anchors_does_not_drift(
    realization: Realization, inputs: np.ndarray, expected: np.ndarray
) -> None:
    features = simulate(realization, inputs, dtype=np.float32)
    by_length = [
        relative_errors(features[a : a + LENGTH], expected[a : a + LENGTH]).max() for a in range(0, len(inputs), LENGTH)
    ]
    assert max(by_length) <= 5e-6
    assert by_length[-1] <= 3 * by_length[1]


def test_anchors_are_what_keeps_float32_from_drifting(
    realization: Realization, inputs: np.ndarray, expected: np.ndarray
) -> None:
    tail = slice(7 * LENGTH, None)
    without = relative_errors(simulate(realization, inputs, dtype=np.float32, anchor=0)[tail], expected[tail])
    anchored = relative_errors(simulate(realization, inputs, dtype=np.float32)[tail], expected[tail])
    assert without.max() > 3 * anchored.max()


def test_the_plain_recurrence_is_wrong_past_the_length(realization: Realization, expected: np.ndarray) -> None:
    impulse = np.zeros((2 * LENGTH, 1))
    impulse[0] = 1
    features = simulate(realization, impulse)
    # After L tokens an impulse has left; without the leaving term the poles would still ring.
    assert np.abs(features[LENGTH:]).max() < 1e-7
    ringing = realization.C @ realization.impulse_states(2 * LENGTH)[:, LENGTH:]
    assert np.abs(ringing).max() > 1e-2


def test_restart_sees_between_half_a_length_and_a_whole_one(realization: Realization, inputs: np.ndarray) -> None:
    features = simulate(realization, inputs[: 3 * LENGTH], overflow="restart")
    filters = hankel_bank(LENGTH, CHANNELS).filters
    for t in (0, LENGTH // 2, LENGTH - 1, LENGTH, LENGTH + 77, 2 * LENGTH - 1, 3 * LENGTH - 1):
        start = restart_start(t, LENGTH)
        assert t < LENGTH or LENGTH // 2 <= t + 1 - start <= LENGTH
        seen = inputs[start : t + 1][::-1]
        np.testing.assert_allclose(features[t], filters[:, : len(seen)] @ seen, atol=1e-6)


def test_refuse_refuses(realization: Realization, inputs: np.ndarray) -> None:
    simulate(realization, inputs[:LENGTH], overflow="refuse")
    with pytest.raises(InputError, match="512"):
        simulate(realization, inputs[: LENGTH + 1], overflow="refuse")
