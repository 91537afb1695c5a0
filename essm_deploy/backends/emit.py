"""Checkpoint and budgets -> a directory of engines over one weights file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from essm_deploy.backends.base import Backend
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.families import family_of
from essm_deploy.families.base import Plan
from essm_deploy.graph.builder import save_model
from essm_deploy.graph.precision import check_island
from essm_deploy.graph.weights import Region, write_weights
from essm_deploy.runtime.manifest import Engine

WEIGHTS = "weights.bin"


@dataclass(frozen=True)
class Emitter:
    """Emits engines of one checkpoint into `root`; the weights up to the largest budget are already there."""

    root: Path
    checkpoint: Checkpoint
    plan: Plan
    backend: Backend
    regions: dict[str, Region]

    def engine(self, budget: int) -> Engine:
        """Slice, lower, check, build. BuildError names the graph; nothing is measured here."""
        family, piece = family_of(self.checkpoint), family_of(self.checkpoint).slice(self.checkpoint, budget)
        name = f"k{budget}-sequence"
        constants = self.root / f"{name}.bin"
        model = save_model(family.lower(piece, self.plan, self.regions, constants), self.root / f"{name}.onnx")
        check_island(model)
        signature = family.signature(piece, self.plan)
        engine = Engine(
            id=name,
            budget=f"k{budget}",
            kind="sequence",
            backend=self.backend.name,
            precision="fp32",
            files=(f"{name}.onnx", WEIGHTS, *_kept(constants)),
            inputs=signature.inputs,
            outputs=signature.outputs,
            requires=self.backend.requirements(),
        )
        return self.backend.build(self.root, engine)


def prepare(root: Path, checkpoint: Checkpoint, budgets: Sequence[int], plan: Plan, backend: Backend) -> Emitter:
    """Write the weights that the largest of `budgets` needs, and return the emitter for any of them."""
    piece = family_of(checkpoint).slice(checkpoint, max(budgets))
    tensors = {name: t for name, t in piece.tensors.items() if not name.startswith("bank.")}
    return Emitter(root, checkpoint, plan, backend, write_weights(root, WEIGHTS, tensors))


def _kept(constants: Path) -> list[str]:
    """The constants file's name, unless nothing was written to it."""
    if constants.stat().st_size:
        return [constants.name]
    constants.unlink()
    return []
