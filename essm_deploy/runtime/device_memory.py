"""Memory of an engine on a GPU, and which figure a memory limit bounds.

    device_bytes   what the runtime accounts for: the engine, its activations and buffers, without the CUDA context
    nvml_bytes     what the driver holds for the whole process on the GPU, its CUDA context included

A limit bounds the peak of the process where the engine runs on the host, and the device's memory where the GPU has its
own. A GPU that lives in the processor's memory (Jetson) is bounded by both together: what CUDA allocates there is taken from
the same chips, and is not in the resident set of the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.nvml import Nvml, NvmlError, shares_memory
from essm_deploy.runtime.requirements import DEFAULT_PROVIDER, provider_of, required_device
from essm_deploy.runtime.session import Session

PEAK, DEVICE, NVML, TOGETHER = "peak_bytes", "device_bytes", "nvml_bytes", "peak_bytes+device_bytes"
SLOWDOWNS = "gpu_slowdowns"
BOUNDS = (PEAK, DEVICE, NVML, TOGETHER)
"""What `bounded_by` may be: the names of the figures whose sum a limit bounds."""

_ON_HOST = "the engine runs on the host: no GPU takes part"
_NOT_ACCOUNTED = "the runtime does not account for device memory"


@dataclass(frozen=True)
class DeviceReading:
    """Bytes, or None where `reasons` says why; `gpu_slowdowns` says why the GPU's clocks are held down."""

    device_bytes: int | None = None
    nvml_bytes: int | None = None
    bounded_by: str = PEAK
    gpu_slowdowns: list[str] | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def read_device(engine: Engine, session: Session) -> DeviceReading:
    """The figures of an opened engine; see the module's docstring."""
    index = _index(engine)
    if index is None:
        return DeviceReading(reasons=dict.fromkeys((DEVICE, NVML, SLOWDOWNS), _ON_HOST))
    accounted = getattr(session, "device_bytes", None) or None
    reasons = {} if accounted else {DEVICE: _NOT_ACCOUNTED}
    held, slowdowns = _ask(index, reasons)
    return DeviceReading(accounted, held, _bounded_by(index, accounted, held), slowdowns, reasons)


def _index(engine: Engine) -> int | None:
    """The GPU that the engine runs on, as CUDA counts; None if it runs on the host."""
    if "compute_capability" in engine.requires:
        return required_device(engine).index
    return None if provider_of(engine.requires) == DEFAULT_PROVIDER else 0


def _ask(index: int, reasons: dict[str, str]) -> tuple[int | None, list[str] | None]:
    """What NVML says; `reasons` takes why it does not."""
    held: int | None = None
    slowdowns: list[str] | None = None
    try:
        nvml = Nvml(index)
    except NvmlError as reason:
        reasons[NVML] = reasons[SLOWDOWNS] = str(reason)
        return None, None
    try:
        held = nvml.process_bytes()
    except NvmlError as reason:
        reasons[NVML] = str(reason)
    try:
        slowdowns = nvml.slowdowns()
    except NvmlError as reason:
        reasons[SLOWDOWNS] = str(reason)
    return held, slowdowns


def _bounded_by(index: int, accounted: int | None, held: int | None) -> str:
    try:
        if shares_memory(index):
            return TOGETHER
    except NvmlError:
        pass  # a GPU on a card, as most are
    return NVML if accounted is None and held is not None else DEVICE
