from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.report import latency_json, memory_json
from essm_deploy.profiling.statistics import effective_samples, percentile_bounds
from essm_deploy.profiling.verdict import Latency, Limits, Measurement, Memory, disturbed, judge
from tests.profiling.simulated import measurement

SAMPLES = np.random.default_rng(0).lognormal(0, 0.3, 400).tolist()


def test_every_percentile_has_its_own_bounds_or_the_count_that_they_take() -> None:
    latency = Latency.from_samples(SAMPLES)
    assert set(latency.bounds) == {"p50", "p90", "p95", "p99"}
    for name, fraction in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        exact = percentile_bounds(sorted(SAMPLES), fraction, 0.975, effective_samples(SAMPLES, fraction))
        assert latency.bounds[name] == {"lower": exact.lower, "upper": exact.upper, "needed_samples": exact.needed}
    assert (latency.lower, latency.upper) == (latency.bounds["p95"]["lower"], latency.bounds["p95"]["upper"])
    few = Latency.from_samples(SAMPLES[:100])
    assert few.bounds["p95"]["upper"] is not None
    assert few.bounds["p99"] == {"lower": pytest.approx(few.bounds["p99"]["lower"]), "upper": None, "needed_samples": 368}


def test_another_statistic_than_the_usual_four_is_bounded_too() -> None:
    latency = Latency.from_samples(SAMPLES, statistic="p75")
    assert latency.bounds["p75"]["upper"] == latency.upper
    assert latency.lower is not None
    assert latency.upper is not None
    assert latency.lower < latency.value < latency.upper


def paced() -> Measurement:
    latency = Latency.from_samples(SAMPLES, pace_ms=20.0)
    plain = [value / 2 for value in SAMPLES]
    return replace(
        measurement(8, SAMPLES),
        latency=latency,
        back_to_back=Latency.from_samples(plain),
        back_to_back_samples_ms=tuple(plain),
        load_ms=30.0,
        first_ms=5.0,
        stolen_share=0.0,
    )


def test_a_paced_measurement_survives_the_round_trip_through_json() -> None:
    record = json.loads(json.dumps(paced().to_json()))
    assert Measurement.from_json(record) == paced()
    assert {"samples_ms", "back_to_back_samples_ms"} & set(paced().to_json(samples=False)) == set()


def test_a_record_of_an_earlier_version_is_read() -> None:
    record = json.loads(json.dumps(measurement(8, SAMPLES).to_json()))
    for name in ("back_to_back", "back_to_back_samples_ms", "stolen_share"):
        del record[name]
    for name in ("bounds", "pace_ms"):
        del record["latency"][name]
    assert Measurement.from_json(record).latency.p95 == Latency.from_samples(SAMPLES).p95


def test_the_cold_start_is_from_opening_to_the_first_result() -> None:
    assert paced().cold_start_ms == {"load": 30.0, "first": 5.0, "total": 35.0}
    assert measurement(8, SAMPLES).cold_start_ms is None


def test_the_paced_calls_decide() -> None:
    (finding,) = judge(paced(), Limits(max_latency_ms=1.2))
    assert finding.side == "exceeds"
    back_to_back = paced().back_to_back
    assert back_to_back is not None
    assert back_to_back.upper is not None
    assert back_to_back.upper < 1.2
    assert latency_json(paced())["pace_ms"] == 20.0


@pytest.mark.parametrize(
    ("memory", "measured", "said"),
    [
        (Memory(100 * 2**20, baseline_bytes=2**20), 100 * 2**20, "the peak of the process is 100"),
        (Memory(100 * 2**20, device_bytes=2**20, bounded_by="device_bytes"), 2**20, "the device memory is 1"),
        (Memory(100 * 2**20, nvml_bytes=3 * 2**20, bounded_by="nvml_bytes"), 3 * 2**20, "the process's device memory is 3"),
        (
            Memory(100 * 2**20, device_bytes=2**20, bounded_by="peak_bytes+device_bytes"),
            101 * 2**20,
            "the peak of the process and its device memory, which are one memory here, is 101",
        ),
    ],
)
def test_a_memory_limit_bounds_what_the_measurement_says_and_says_what(memory: Memory, measured: int, said: str) -> None:
    result = replace(measurement(8, SAMPLES), memory=memory)
    (fits,) = judge(result, Limits(max_memory_bytes=measured))
    (exceeds,) = judge(result, Limits(max_memory_bytes=measured - 1))
    assert (fits.side, exceeds.side, fits.measured) == ("fits", "exceeds", measured)
    assert fits.reason.startswith(said)
    assert memory_json(result)["bounded_bytes"] == measured


def test_a_figure_that_is_missing_is_an_error_with_its_reason_and_not_zero() -> None:
    memory = Memory(100 * 2**20, bounded_by="peak_bytes+device_bytes", reasons={"device_bytes": "no account"})
    result = replace(measurement(8, SAMPLES), memory=memory)
    assert memory_json(result)["bounded_bytes"] is None
    with pytest.raises(UnavailableError, match=r"one memory here.*no account"):
        judge(result, Limits(max_memory_bytes=2**30))


def test_time_that_a_hypervisor_took_leaves_the_question_open_as_waiting_does() -> None:
    limit = Limits(max_latency_ms=min(SAMPLES) + 0.1)
    for changes in ({"waited_share": 0.3}, {"stolen_share": 0.3}):
        busy = replace(measurement(8, SAMPLES), **changes)
        assert disturbed(busy)
        (finding,) = judge(busy, limit)
        assert (finding.side, "30%" in finding.reason) == ("unclear", True)
    assert judge(measurement(8, SAMPLES), limit)[0].side == "exceeds"


@pytest.mark.parametrize(
    ("fastest", "spread", "waited", "side"),
    [
        (2.0, 0.02, 0.3, "exceeds"),  # short calls, the fastest of them close together: some went through whole
        (2.0, 2.0, 0.3, "unclear"),  # far apart: none did
        (20.0, 0.02, 0.3, "unclear"),  # longer than a time slice: all of them waited, and about equally long
        (20.0, 0.02, 0.1, "exceeds"),  # somebody was there now and then
        (20.0, 0.02, 0.0, "exceeds"),
    ],
)
def test_even_the_fastest_call_of_a_busy_machine_may_have_waited(
    fastest: float, spread: float, waited: float, side: str
) -> None:
    samples = (fastest * (1 + spread * np.random.default_rng(0).random(300))).tolist()
    busy = replace(measurement(8, samples), waited_share=waited)
    (finding,) = judge(busy, Limits(max_latency_ms=0.9 * fastest))
    assert finding.side == side
    assert judge(busy, Limits(max_latency_ms=0.5 * fastest))[0].side == "exceeds"
