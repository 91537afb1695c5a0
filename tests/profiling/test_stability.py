from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from essm_deploy.profiling.stability import Stability, machine_warnings, pace_warnings, stability_warnings, two_modes
from essm_deploy.profiling.verdict import Latency
from tests.profiling.simulated import Device, measurement

RNG = np.random.default_rng(20260122)


def warned(samples: np.ndarray, waited_share: float | None = None) -> set[str]:
    """The kinds of the warnings: the word before the colon."""
    values = samples.tolist()
    return {text.partition(":")[0] for text in stability_warnings(values, Latency.from_samples(values), waited_share)}


def quiet(count: int = 2000, width: float = 0.02) -> np.ndarray:
    return 2.0 * np.exp(width * RNG.standard_normal(count))


def test_a_quiet_device_is_not_warned_of() -> None:
    assert [warned(quiet(count)) for count in (200, 300, 3000)] == [set()] * 3


def test_what_half_of_the_samples_say_and_the_other_half_does_not_is_drift() -> None:
    samples = quiet()
    samples[1400:] *= 1.2  # most of the second half
    assert "drift" in warned(samples)
    assert "drift" not in warned(RNG.permutation(samples))


@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("apart", [1.25, 2.0])
def test_two_speeds_are_told_with_their_shares(share: float, apart: float) -> None:
    samples = quiet() * np.where(RNG.random(2000) < share, apart, 1.0)
    (said,) = [text for text in stability_warnings(samples.tolist(), Latency.from_samples(samples.tolist())) if "bimod" in text]
    modes = Stability.of(samples.tolist()).modes
    assert modes is not None
    assert (modes.fast, modes.slow) == (pytest.approx(2.0, rel=0.01), pytest.approx(2.0 * apart, rel=0.01))
    assert modes.slow_share == pytest.approx(share, abs=0.04)  # four standard errors of a share of 2000, and the cut tail
    assert f"{modes.slow_share:.0%}" in said


@pytest.mark.parametrize("draw", ["standard_normal", "random", "standard_exponential"])
def test_one_body_of_any_shape_is_not_two(draw: str) -> None:
    found = [two_modes(5 + np.abs(getattr(RNG, draw)(count))) for count in (100, 300, 1000, 3000) for _ in range(50)]
    assert sum(modes is not None for modes in found) <= 2  # 1% by chance, at the smallest count


def test_outliers_are_told_with_their_share_and_size() -> None:
    samples = quiet(1000)
    samples[::25] *= 9
    (said,) = [text for text in stability_warnings(samples.tolist(), Latency.from_samples(samples.tolist())) if "outl" in text]
    assert "4.0% of the calls" in said
    assert "9.4 medians" in said or "9" in said.partition("up to ")[2]
    found = Stability.of(samples.tolist())
    assert found.outlier_share == pytest.approx(0.04)
    assert found.body_variation < 0.03 < found.variation


def test_a_few_outliers_and_narrow_ones_are_recorded_and_not_warned_of() -> None:
    rare, narrow = quiet(1000), 2.0 + 1e-5 * RNG.standard_normal(1000)
    rare[::200] *= 9
    narrow[::25] *= 1.1
    assert warned(rare) == warned(narrow) == set()
    assert Stability.of(rare.tolist()).outlier_share == pytest.approx(0.005)


def test_calls_that_vary_without_outliers_have_a_wide_spread() -> None:
    assert "spread" in warned(2.0 * RNG.uniform(0.3, 1.7, 2000))


def test_slow_stretches_and_a_bound_that_is_not_supported_say_what_it_would_take() -> None:
    samples = quiet(600)
    samples[100:130] *= 3
    values = samples.tolist()
    latency = Latency.from_samples(values)
    said = stability_warnings(values, latency)
    assert latency.upper is None
    assert any(text.startswith("dependence: ") for text in said)
    (support,) = [text for text in said if text.startswith("support: ")]
    wanted = int(support.partition("about ")[2].partition(" ")[0])
    assert wanted == pytest.approx(72 * 600 / latency.effective_samples, abs=1)


def test_a_wait_for_a_processor_and_stolen_time_are_contention() -> None:
    assert warned(quiet(), waited_share=0.3) == {"contention"}
    assert warned(quiet(), waited_share=0.01) == set()
    assert machine_warnings(0.2, {})[0].startswith("contention: the hypervisor gave 20%")
    assert machine_warnings(0.01, {}) == machine_warnings(None, {}) == []


@pytest.mark.parametrize(
    ("throttling", "said"),
    [
        ({"throttle_events": 3}, "3 times"),
        ({"ceiling_khz": {"before": 2_000_000, "after": 1_000_000}}, "allowed clock fell by 50%"),
        ({"frequency_khz": {"before": 2_000_000, "after": 1_600_000}}, "clock fell by 20%"),
        ({"cooling_steps": {"before": 0, "after": 2}}, "step 0 to 2"),
        ({"gpu_slowdowns": ["heat"]}, "held down: heat"),
    ],
)
def test_a_machine_that_slows_down_is_said_to(throttling: dict[str, Any], said: str) -> None:
    (warning,) = machine_warnings(None, throttling)
    assert warning.startswith("throttling: ")
    assert said in warning


@pytest.mark.parametrize(
    "throttling",
    [
        {"throttle_events": 0, "gpu_slowdowns": []},
        {"ceiling_khz": {"before": 1_000_000, "after": 2_000_000}, "frequency_khz": {"before": 2_000_000, "after": 1_950_000}},
        {"cooling_steps": {"before": 2, "after": 2}, "temperature_c": {"before": 40.0, "after": 70.0}},
        {"frequency_khz": None, "ceiling_khz": None, "throttle_events": None},
    ],
)
def test_a_machine_that_does_not_is_not(throttling: dict[str, Any]) -> None:
    assert machine_warnings(None, throttling) == []


def test_calls_longer_than_the_pace_are_told() -> None:
    samples = [5.0] * 90 + [15.0] * 10
    assert pace_warnings(samples, 10.0) == [
        "pace: 10% of the calls took longer than the pace of 10 ms, so that the next one began late"
    ]
    assert pace_warnings(samples, 20.0) == []


def test_the_simulated_device_is_warned_of_for_what_it_does() -> None:
    heavy = Device(1.0, 0.1, seed=1, count=3000)
    plain = measurement(8, heavy.samples(8, 3000).tolist())
    assert {text.partition(":")[0] for text in plain.warnings} == {"outliers"}
    stretches = measurement(8, Device(1.0, 0.1, seed=1, slow=True).samples(8, 3000).tolist())
    assert "dependence" in {text.partition(":")[0] for text in stretches.warnings}
