"""Which GPUs are here: asked of the driver, and where there is none, why."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from essm_deploy.runtime import cuda
from essm_deploy.runtime.cuda import NoDeviceError, cuda_devices, describe_devices, find_device


class Driver:
    """libcuda with two devices."""

    status = 0
    count = 2

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        count._obj.value = self.count

    def cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802
        version._obj.value = 13010

    def cuDeviceGetName(self, buffer: Any, size: int, index: int) -> None:  # noqa: N802
        buffer.value = f"NVIDIA Imaginary {index}".encode()

    def cuDeviceTotalMem_v2(self, memory: Any, index: int) -> None:  # noqa: N802
        memory._obj.value = 8 * 2**30

    def cuDeviceGetAttribute(self, value: Any, which: int, index: int) -> None:  # noqa: N802
        value._obj.value = {75: 8, 76: 6 + 3 * index}[which]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


def test_every_device_is_described(driver: Driver) -> None:
    assert [(d.index, d.compute_capability, d.driver) for d in cuda_devices()] == [(0, "8.6", "13.1"), (1, "8.9", "13.1")]
    assert describe_devices() == "NVIDIA Imaginary 0 (compute capability 8.6), NVIDIA Imaginary 1 (compute capability 8.9)"


def test_the_first_device_of_a_capability_is_found(driver: Driver) -> None:
    device = find_device(("8.9", "9.0"))
    assert device is not None
    assert device.index == 1
    assert find_device(("9.0",)) is None


def test_without_a_driver_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_DRIVER", "libnothing.so.1")
    assert describe_devices() == "no NVIDIA driver (libnothing.so.1 is not here)"
    assert find_device(("8.6",)) is None


@pytest.mark.parametrize(("status", "count", "reason"), [(100, 2, "CUDA error 100"), (0, 0, "no NVIDIA GPU")])
def test_a_driver_without_devices_says_so(driver: Driver, status: int, count: int, reason: str) -> None:
    driver.status, driver.count = status, count
    with pytest.raises(NoDeviceError, match=reason):
        cuda_devices()
