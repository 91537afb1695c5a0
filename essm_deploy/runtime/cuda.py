"""Which NVIDIA devices this machine has, asked of the driver itself: no package is needed, and the answer is never a guess."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


@dataclass(frozen=True)
class CudaDevice:
    """One device: its index, name, compute capability ("8.6"), memory in bytes, and the CUDA version of the driver ("13.0")."""

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    driver: str


class NoDeviceError(Exception):
    """Why there is none, in a few words."""


def find_device(capabilities: tuple[str, ...]) -> CudaDevice | None:
    """The first device with one of the compute capabilities; None if there is none, for whatever reason."""
    try:
        return next((device for device in cuda_devices() if device.compute_capability in capabilities), None)
    except NoDeviceError:
        return None


def describe_devices() -> str:
    """What is here, for an error's second half: "NVIDIA GeForce RTX 4090 (compute capability 8.9)" or why there is none."""
    try:
        return ", ".join(f"{d.name} (compute capability {d.compute_capability})" for d in cuda_devices())
    except NoDeviceError as reason:
        return str(reason)


def cuda_devices() -> list[CudaDevice]:
    """Every device that the driver shows, at least one. Raises NoDeviceError."""
    try:
        driver: Any = ctypes.CDLL(_DRIVER)
    except OSError:
        raise NoDeviceError(f"no NVIDIA driver ({_DRIVER} is not here)") from None
    status = driver.cuInit(0)
    if status != 0:
        raise NoDeviceError(f"the NVIDIA driver does not start (CUDA error {status})")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        raise NoDeviceError("no NVIDIA GPU")
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    shown = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return [_device(driver, index, shown) for index in range(count.value)]


def _device(driver: Any, index: int, version: str) -> CudaDevice:
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, len(name), index)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), index)
    major, minor = (_attribute(driver, which, index) for which in (_MAJOR, _MINOR))
    return CudaDevice(index, name.value.decode("utf-8", "replace"), f"{major}.{minor}", memory.value, version)


def _attribute(driver: Any, which: int, index: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, index)
    return value.value
