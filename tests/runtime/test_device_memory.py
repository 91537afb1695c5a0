"""NVML and the driver are played by Python objects with the C functions' names and conventions."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from essm_deploy.runtime import device_memory, nvml
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.device_memory import BOUNDS, read_device
from essm_deploy.runtime.manifest import Engine
from tests.runtime.tiny import engine_entry

HOST = Engine.from_json(engine_entry("k8"))
CUDA = Engine.from_json(engine_entry("k8") | {"requires": {"provider": "CUDAExecutionProvider"}})
RTX = Engine.from_json(engine_entry("k8") | {"backend": "tensorrt-rtx", "requires": {"compute_capability": ["8.6"]}})
MIB = 2**20


class Driver:
    """libcuda: one GPU, integrated or not."""

    def __init__(self, integrated: int = 0, start: int = 0) -> None:
        self.integrated, self.start = integrated, start

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the C name
        return self.start

    def cuDeviceGetPCIBusId(self, text: Any, size: int, index: int) -> int:  # noqa: N802
        text.value = b"0000:01:00.0"
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, index: int) -> int:  # noqa: N802
        assert which == 18
        value._obj.value = self.integrated
        return 0


class Library:
    """libnvidia-ml: processes by number and bytes, and the reasons that hold the clocks down."""

    def __init__(self, processes: dict[int, int], reasons: int = 0) -> None:
        self.processes, self.reasons = processes, reasons

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: Any) -> int:  # noqa: N802
        assert bus == b"0000:01:00.0"
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, entries: Any) -> int:  # noqa: N802
        room, count._obj.value = count._obj.value, len(self.processes)
        if room < len(self.processes):
            return 7
        for entry, (pid, used) in zip(entries or (), self.processes.items(), strict=False):
            entry.pid, entry.used = pid, used
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, bits: Any) -> int:  # noqa: N802
        bits._obj.value = self.reasons
        return 0


def play(monkeypatch: pytest.MonkeyPatch, library: Library | None, driver: Driver | None) -> None:
    def opened(name: str) -> Any:
        found = library if name.startswith("libnvidia-ml") else driver
        if found is None:
            raise nvml.NvmlError(f"{name} is not here")
        return found

    monkeypatch.setattr(nvml, "_library", opened)
    device = CudaDevice(0, "a GPU", "8.6", 2**33, "13.0")
    monkeypatch.setattr(device_memory, "required_device", lambda engine: device)


def session(device_bytes: int | None) -> Any:
    return SimpleNamespace(provider="a GPU", threads=1, device_bytes=device_bytes)


def test_an_engine_on_the_host_is_bounded_by_the_peak_of_its_process() -> None:
    found = read_device(HOST, session(None))
    assert (found.device_bytes, found.nvml_bytes, found.bounded_by, found.gpu_slowdowns) == (None, None, "peak_bytes", None)
    assert set(found.reasons) == {"device_bytes", "nvml_bytes", "gpu_slowdowns"}


def test_a_gpu_with_memory_of_its_own_is_bounded_by_that_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Library({1: 99 * MIB, os.getpid(): 300 * MIB}, reasons=0x40 | 0x04 | 0x01), Driver())
    found = read_device(RTX, session(20 * MIB))
    assert (found.device_bytes, found.nvml_bytes, found.bounded_by) == (20 * MIB, 300 * MIB, "device_bytes")
    assert found.gpu_slowdowns == ["power cap", "heat, in hardware"]
    assert found.reasons == {}


def test_what_the_driver_holds_is_the_bound_where_the_runtime_keeps_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Library({os.getpid(): 300 * MIB}), Driver())
    found = read_device(CUDA, session(None))
    assert (found.device_bytes, found.nvml_bytes, found.bounded_by) == (None, 300 * MIB, "nvml_bytes")
    assert "does not account" in found.reasons["device_bytes"]


def test_a_gpu_in_the_processors_memory_is_bounded_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, None, Driver(integrated=1))
    found = read_device(RTX, session(20 * MIB))
    assert (found.bounded_by, found.nvml_bytes) == ("peak_bytes+device_bytes", None)
    assert found.reasons["nvml_bytes"] == "libnvidia-ml.so.1 is not here"
    assert "gpu_slowdowns" in found.reasons
    assert found.bounded_by in BOUNDS


def test_a_container_where_nvml_shows_other_process_numbers_is_null_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Library({os.getpid() + 1: 300 * MIB}), Driver())
    found = read_device(RTX, session(20 * MIB))
    assert found.nvml_bytes is None
    assert "containers" in found.reasons["nvml_bytes"]
    assert found.gpu_slowdowns == []


def test_a_figure_that_nvml_cannot_give_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Library({os.getpid(): 2**64 - 1}), Driver())
    assert read_device(RTX, session(20 * MIB)).nvml_bytes is None


def test_a_driver_that_does_not_start_leaves_the_runtimes_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Library({}), Driver(start=100))
    found = read_device(RTX, session(20 * MIB))
    assert (found.device_bytes, found.bounded_by) == (20 * MIB, "device_bytes")
    assert "does not start" in found.reasons["nvml_bytes"]


def test_the_c_structure_has_the_layout_of_nvml_h() -> None:
    assert ctypes.sizeof(nvml._Process) == 24  # pid and padding, 8 bytes of memory, two numbers of instances
