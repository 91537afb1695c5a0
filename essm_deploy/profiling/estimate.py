"""Latency without a device: a roofline over the graph's own work, with the device's published rates.

    t = call + sum over nodes of launch + max(flops / (rate * compute), bytes / (bandwidth * memory))

A node's rate is that of its precision: fp32 on CUDA cores, for TF32 is off; fp16 and bf16 GEMMs on tensor cores where that is
published. (The model is Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.) Nothing here is measured on the
device, so every figure says `estimated`: it orders candidates and chooses one of them until the device is at hand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from essm_deploy.errors import UnavailableError
from essm_deploy.profiling.work import GraphWork, NodeWork, graph_work
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.planning import lawful_lowerings
from essm_deploy.targets.description import Target

BASIS = "estimated"


@dataclass(frozen=True)
class Efficiency:
    """What share of the published rates a kernel gets, and what a kernel and a call cost beside it; `source` says whence."""

    compute: float
    memory: float
    launch_us: float
    call_us: float
    source: str

    def to_json(self) -> dict[str, Any]:
        """All factors, to be stated beside every estimate."""
        return asdict(self)


GPU = Efficiency(
    compute=0.5,
    memory=0.6,
    launch_us=3.0,
    call_us=30.0,
    source="assumed, not calibrated: no GPU has been measured yet; pointwise operators count as fused",
)


@dataclass(frozen=True)
class Rates:
    """Peak rates of a device, in operations and bytes a second; without a half rate, half precision counts as fp32.

    Nodes that move no more than `cache_bytes` move them at the cache's rate. Descriptions of GPUs state no cache: what is won
    there is left out, which errs on the safe side.
    """

    fp32_flops_per_s: float
    bandwidth_bytes_per_s: float
    fp16_flops_per_s: float | None = None
    cache_bytes: int = 0
    cache_bytes_per_s: float | None = None

    @classmethod
    def of(cls, target: Target) -> Rates:
        """Those of the target's description. UnavailableError if it states none."""
        device = target.device
        if device is None:
            raise UnavailableError(f"target {target.name!r} states no [device] rates, and it is not here to be measured")
        return cls(device.fp32_flops_per_s, device.bandwidth_bytes_per_s, device.fp16_flops_per_s)


@dataclass(frozen=True)
class Estimate:
    """One call. `bound` counts the milliseconds of nodes that compute or memory bounds, and of what neither does."""

    latency_ms: float
    device_bytes: int
    flops: float
    bytes: float
    launches: int
    bound: dict[str, float]
    basis: str = BASIS

    def to_json(self) -> dict[str, Any]:
        """For documents and manifests; the basis is in it."""
        return asdict(self)


def estimate_graph(path: Path, rates: Rates, efficiency: Efficiency, *, fused: bool = False) -> Estimate:
    """The estimate for one call of the graph at batch 1; `fused` as in `graph_work`. BuildError without its shapes."""
    return estimate_work(graph_work(path, fused=fused), rates, efficiency)


def estimate_work(work: GraphWork, rates: Rates, efficiency: Efficiency) -> Estimate:
    """The same for work that was counted before. Device memory is weights and live results: no context, no workspace."""
    overhead = 1e-3 * (efficiency.call_us + efficiency.launch_us * len(work.nodes))
    bound = {"compute_ms": 0.0, "memory_ms": 0.0, "overhead_ms": overhead}
    for node in work.nodes:
        compute, memory = node_ms(node, rates, efficiency)
        bound["compute_ms" if compute >= memory else "memory_ms"] += max(compute, memory)
    total = sum(bound.values())
    return Estimate(total, work.weight_bytes + work.live_bytes, work.flops, work.bytes, len(work.nodes), bound)


def node_ms(node: NodeWork, rates: Rates, efficiency: Efficiency) -> tuple[float, float]:
    """Milliseconds that a node needs to compute, and to move its bytes."""
    half = rates.fp16_flops_per_s if node.half and node.gemm else None
    cached = rates.cache_bytes_per_s if node.bytes <= rates.cache_bytes else None
    flops_per_s = (half or rates.fp32_flops_per_s) * efficiency.compute
    bytes_per_s = (cached or rates.bandwidth_bytes_per_s) * efficiency.memory
    return 1e3 * node.flops / flops_per_s, 1e3 * node.bytes / bytes_per_s


@dataclass(frozen=True)
class EstimatedPlanner:
    """Chooses a lowering by the roofline of the device; `name` leaves those of that name. `records` stays empty: no times."""

    rates: Rates
    efficiency: Efficiency
    name: str | None = None

    @property
    def records(self) -> dict[str, dict[str, float]]:
        """What was measured: nothing."""
        return {}

    def __call__(self, problem: ConvProblem) -> Lowering:
        """The fastest lawful lowering by estimate."""
        return min(lawful_lowerings(problem, self.name), key=lambda lowering: self.milliseconds(lowering, problem))

    def milliseconds(self, lowering: Lowering, problem: ConvProblem) -> float:
        """Of one layer's convolution in fp32."""
        cost = lowering.cost(problem)
        node = NodeWork("convolution", "MatMul", cost.flops, cost.bytes, gemm=True, half=False)
        return max(node_ms(node, self.rates, self.efficiency)) + 1e-3 * self.efficiency.launch_us * cost.launches
