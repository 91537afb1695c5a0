"""What NVML, the library of nvidia-smi, knows of one GPU: this process's memory there, and why its clocks are held down."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBRARY, _DRIVER = "libnvidia-ml.so.1", "libcuda.so.1"
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE of nvml.h
_INSUFFICIENT_SIZE = 7
_MORE = 16  # processes that may start between the two calls
_SLOWDOWNS = {  # nvmlClocksEventReasons* of nvml.h; an idle GPU and clocks that somebody chose are no slowdowns
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat, in hardware",
    0x80: "external power brake",
}


class NvmlError(Exception):
    """Why NVML does not tell, in a few words."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """NVML's view of the GPU that CUDA calls `index`. Every method raises NvmlError where it does not tell."""

    def __init__(self, index: int) -> None:
        self._api = _library(_LIBRARY)
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", _bus_id(index), ctypes.byref(self._device))

    def process_bytes(self) -> int:
        """Device memory of this process, its CUDA context included."""
        for process in self._processes():
            if process.pid == os.getpid() and process.used != _NOT_AVAILABLE:
                return int(process.used)
        raise NvmlError("NVML shows no memory of this process, as is usual in containers")

    def slowdowns(self) -> list[str]:
        """Why the clocks are held down now; empty if they are not."""
        bits = ctypes.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if hasattr(self._api, name):
                self._call(name, self._device, ctypes.byref(bits))
                return [text for bit, text in _SLOWDOWNS.items() if bits.value & bit]
        raise NvmlError("this NVML does not say why clocks are held down")

    def _processes(self) -> list[_Process]:
        names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        name = next((name for name in names if hasattr(self._api, name)), None)
        if name is None:
            raise NvmlError("this NVML is too old to list processes")
        count = ctypes.c_uint(0)
        self._call(name, self._device, ctypes.byref(count), None, allowed=(0, _INSUFFICIENT_SIZE))
        count = ctypes.c_uint(count.value + _MORE)
        entries = (_Process * count.value)()
        self._call(name, self._device, ctypes.byref(count), entries)
        return list(entries[: count.value])

    def _call(self, name: str, *arguments: Any, allowed: tuple[int, ...] = (0,)) -> None:
        if not hasattr(self._api, name):
            raise NvmlError(f"this NVML has no {name}")
        status = getattr(self._api, name)(*arguments)
        if status not in allowed:
            raise NvmlError(f"{name} failed ({status})")


def shares_memory(index: int) -> bool:
    """Whether the GPU lives in the processor's memory (Jetson): CU_DEVICE_ATTRIBUTE_INTEGRATED of cuda.h. Raises NvmlError."""
    value = ctypes.c_int()
    driver = _driver()
    if driver.cuDeviceGetAttribute(ctypes.byref(value), 18, index) != 0:
        raise NvmlError("the driver does not say whether the GPU has memory of its own")
    return value.value != 0


def _bus_id(index: int) -> bytes:
    """CUDA and NVML number GPUs in different orders; both know the place on the bus."""
    text = ctypes.create_string_buffer(32)
    if _driver().cuDeviceGetPCIBusId(text, len(text), index) != 0:
        raise NvmlError("the driver does not say where on the bus the GPU is")
    return text.value


def _driver() -> Any:
    driver = _library(_DRIVER)
    if driver.cuInit(0) != 0:
        raise NvmlError("the NVIDIA driver does not start")
    return driver


def _library(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise NvmlError(f"{name} is not here") from None
