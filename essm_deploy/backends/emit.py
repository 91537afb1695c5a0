"""Checkpoint and budgets -> a directory of engines over one weights file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from essm_deploy.backends.base import Backend
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.families import family_of
from essm_deploy.families.base import Family, Lowered, ModelConfig, Plan
from essm_deploy.graph.builder import Dim, save_model
from essm_deploy.graph.dtypes import Precision
from essm_deploy.graph.precision import check_island, check_policy
from essm_deploy.graph.weights import Region, write_weights
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.stream_info import StreamInfo
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.streams import Recurrent, StreamLowering
from essm_deploy.spectral.planning import lawful_lowerings, stream_lowering

WEIGHTS = "weights.bin"
ANCHOR = "anchor"

Planner = Callable[[ConvProblem], Lowering]


def engine_id(budget: int, kind: str, chunk: int | None = None, precision: str = "fp32") -> str:
    """`k8-sequence`, `k8-stream-1`, and with the precision where it is not fp32: `k8-sequence-fp16`."""
    parts = [f"k{budget}", kind, *([str(chunk)] if chunk is not None else []), *([precision] if precision != "fp32" else [])]
    return "-".join(parts)


def cheapest(problem: ConvProblem) -> Lowering:
    """The planner that measures nothing."""
    return lawful_lowerings(problem)[0]


@dataclass
class Emitter:
    """Emits engines of one checkpoint into `root`, whose weights are there already.

    `largest` is the checkpoint at the largest budget: its filters make the state that the stream engines of all budgets share.
    `lowerings` fills with how each engine's convolution is spelled. `precision` is what the weights are stored in.
    """

    root: Path
    largest: Checkpoint
    batch: Dim
    backend: Backend
    regions: dict[str, Region]
    planner: Planner = cheapest
    precision: Precision = "fp32"
    lowerings: dict[str, str] = field(default_factory=dict)

    def at(self, budget: int) -> Emitter:
        """The emitter of a bundle whose largest budget this is: its stream state is the smallest that will do."""
        return replace(self, largest=self._piece(budget))

    def sequence(self, budget: int) -> Engine:
        """The engine that takes the whole input at once. BuildError names the graph; nothing is measured here."""
        piece, plan = self._piece(budget), Plan(self._config.seq_len, self.batch)
        lowering = self.planner(self._family.problem(piece, plan))
        name = engine_id(budget, "sequence", precision=self.precision)
        return self._build(name, budget, "sequence", piece, replace(plan, lowering=lowering, precision=self.precision))

    def stream(self, budget: int, chunk: int) -> Engine:
        """The engine that takes `chunk` tokens a call and carries a state."""
        name = engine_id(budget, "stream", chunk, self.precision)
        plan = Plan(chunk, self.batch, self.state, self.precision)
        info = self._stream_info(self._family.problem(self.largest, plan))
        return self._build(name, budget, "stream", self._piece(budget), plan, chunk, info)

    def bundle(self, budgets: Sequence[int]) -> tuple[Engine, ...]:
        """Everything that a bundle holds: a sequence engine and the stream engines of each budget, and the streams' anchor."""
        chunks, engines = self._family.stream_chunks(self.largest), list[Engine]()
        for budget in budgets:
            engines += [self.sequence(budget), *(self.stream(budget, chunk) for chunk in chunks)]
        anchor = self.anchor()
        return (*engines, anchor) if anchor else tuple(engines)

    def anchor(self) -> Engine | None:
        """The engine that makes the state anew, where the state needs one."""
        if not isinstance(self.state, Recurrent) or not self.state.ring:
            return None
        constants = self.root / f"{ANCHOR}.bin"
        lowered = self._family.anchor(self.largest, self.state, self.batch, constants)
        return self._finish(ANCHOR, self._config.k_max, "anchor", lowered, constants, (), None, None, "fp32")

    @cached_property
    def state(self) -> StreamLowering:
        """What a stream carries."""
        problem = self._family.problem(self.largest, Plan(1, self.batch))
        return stream_lowering(problem, str(self.largest.config["overflow"]))

    @cached_property
    def _family(self) -> Family:
        return family_of(self.largest)

    @cached_property
    def _config(self) -> ModelConfig:
        return self._family.config(self.largest)

    def _piece(self, budget: int) -> Checkpoint:
        return self._family.slice(self.largest, budget)

    def _build(
        self,
        name: str,
        budget: int,
        kind: Literal["sequence", "stream"],
        piece: Checkpoint,
        plan: Plan,
        chunk: int | None = None,
        info: StreamInfo | None = None,
    ) -> Engine:
        constants = self.root / f"{name}.bin"
        lowered = self._family.lower(piece, plan, self.regions, constants)
        self.lowerings[name] = plan.lowering.label if plan.lowering else ""
        return self._finish(name, budget, kind, lowered, constants, (WEIGHTS,), chunk, info, self.precision)

    def _finish(
        self,
        name: str,
        budget: int,
        kind: Literal["sequence", "stream", "anchor"],
        lowered: Lowered,
        constants: Path,
        shared: tuple[str, ...],
        chunk: int | None,
        info: StreamInfo | None,
        precision: Precision,
    ) -> Engine:
        """Check the graph, prove the island and the rest of the precision policy, let the backend build."""
        typed = save_model(lowered.model, self.root / f"{name}.onnx")
        check_island(typed)
        check_policy(typed, precision)
        engine = Engine(
            id=name,
            budget=f"k{budget}",
            kind=kind,
            chunk=chunk,
            backend=self.backend.name,
            precision=precision,
            files=(f"{name}.onnx", *shared, *_kept(constants)),
            inputs=lowered.signature.inputs,
            outputs=lowered.signature.outputs,
            requires=self.backend.requirements(),
            stream=info,
        )
        return self.backend.build(self.root, engine)

    def _stream_info(self, problem: ConvProblem) -> StreamInfo:
        ring = isinstance(self.state, Recurrent) and self.state.ring
        overflow = self.largest.config["overflow"]
        restart = ("swap" if isinstance(self.state, Recurrent) else "zero") if overflow == "restart" else None
        return StreamInfo(
            length=problem.taps,
            overflow=overflow,
            ring=ring,
            anchor=ANCHOR if ring else None,
            anchor_every=max(1, problem.taps // 4) if ring else None,
            state=self.state.layout(problem),
            restart=restart,
        )


def prepare(
    root: Path,
    checkpoint: Checkpoint,
    budgets: Sequence[int],
    batch: Dim,
    backend: Backend,
    planner: Planner = cheapest,
    precision: Precision = "fp32",
) -> Emitter:
    """Write the weights that the largest of `budgets` needs, and return the emitter for any of them.

    PrecisionError names a weight that the precision cannot hold.
    """
    family = family_of(checkpoint)
    largest = family.slice(checkpoint, max(budgets))
    tensors = {name: t for name, t in largest.tensors.items() if not name.startswith("bank.")}
    regions = write_weights(root, WEIGHTS, tensors, precision, family.main_tensors(largest))
    return Emitter(root, largest, batch, backend, regions, planner, precision)


def _kept(constants: Path) -> list[str]:
    """The constants file's name, unless nothing was written to it."""
    if constants.stat().st_size:
        return [constants.name]
    constants.unlink()
    return []
