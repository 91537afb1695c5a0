"""The system's files are laid out below a temporary directory, as different machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from essm_deploy.runtime import throttling as module
from essm_deploy.runtime.throttling import snapshot, throttling


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_cpus", lambda: [0, 1])


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def cpu(index: int, frequency: int, ceiling: int = 3_000_000) -> dict[str, object]:
    folder = f"devices/system/cpu/cpu{index}/cpufreq"
    return {f"{folder}/scaling_cur_freq": frequency, f"{folder}/scaling_max_freq": ceiling}


def test_the_fastest_of_the_cpus_in_use_is_the_clock(tmp_path: Path) -> None:
    write(tmp_path, cpu(0, 800_000) | cpu(1, 2_900_000) | cpu(2, 9_000_000))
    before = snapshot(tmp_path)
    write(tmp_path, cpu(1, 1_500_000, 1_600_000) | cpu(0, 800_000, 1_600_000))
    found = throttling(before, snapshot(tmp_path), snapshot(tmp_path))
    assert found["frequency_khz"] == {"before": 2_900_000, "after": 1_500_000}
    assert found["ceiling_khz"] == {"before": 3_000_000, "after": 1_600_000}


def test_throttling_of_cores_and_of_a_jetsons_power_supply_is_counted_from_the_start(tmp_path: Path) -> None:
    cores = "devices/system/cpu/cpu0/thermal_throttle"
    events = {f"{cores}/core_throttle_count": 40, f"{cores}/package_throttle_count": 2, "class/hwmon/hwmon3/oc1_event_cnt": 1}
    before = snapshot(write(tmp_path, events))
    after = snapshot(write(tmp_path, {f"{cores}/core_throttle_count": 43, "class/hwmon/hwmon3/oc1_event_cnt": 2}))
    assert throttling(before, after, after)["throttle_events"] == 4


def test_a_fan_is_no_sign_of_throttling_and_a_slowed_processor_is(tmp_path: Path) -> None:
    fan = {"class/thermal/cooling_device0/type": "pwm-fan", "class/thermal/cooling_device0/cur_state": 3}
    assert snapshot(write(tmp_path, fan)).cooling_steps is None
    slowed = {"class/thermal/cooling_device1/type": "cpufreq-cpu0", "class/thermal/cooling_device1/cur_state": 0}
    before = snapshot(write(tmp_path, slowed))
    after = snapshot(write(tmp_path, {"class/thermal/cooling_device1/cur_state": 2}))
    assert throttling(before, after, after)["cooling_steps"] == {"before": 0, "after": 2}


def test_the_hottest_zone_counts_and_a_sensor_that_is_not_connected_does_not(tmp_path: Path) -> None:
    zones = {f"class/thermal/thermal_zone{i}/temp": value for i, value in enumerate((41_500, 63_250, -256_000, 999_000))}
    assert snapshot(write(tmp_path, zones)).temperature_c == 63.25


def test_what_a_virtual_machine_does_not_show_is_none_with_a_reason(tmp_path: Path) -> None:
    nothing = snapshot(tmp_path)
    found = throttling(nothing, nothing, nothing)
    figures = {"frequency_khz", "ceiling_khz", "temperature_c", "cooling_steps", "throttle_events"}
    assert {name: found[name] for name in figures} == dict.fromkeys(figures)
    assert set(found["reasons"]) == figures
    assert "cpufreq" in found["reasons"]["frequency_khz"]


def test_this_machine_answers() -> None:
    now = snapshot()
    assert set(throttling(now, now, now)) >= {"frequency_khz", "throttle_events", "reasons"}
