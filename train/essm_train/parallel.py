"""One process or many: the same step either way. torchrun starts the processes; nothing here is about machines.

    torchrun --nproc-per-node 8 -m essm_train.cli bytes --data FILE -o CHECKPOINT --strategy fsdp

Every rank makes a step's draws for the whole batch, builds its own rows of it (see share) and trains on these with the step's
budget, so that the sum over the ranks is the step that one process would have made. ddp keeps the whole model on every rank,
fsdp (FSDP2) a share of each layer. States are written by rank 0 and whole, whatever the strategy: a run may go on with another
number of ranks, and a state needs no consolidation before it becomes a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from essm_train.share import Share


@dataclass(frozen=True)
class World:
    """Which of how many processes this is, and how they share the model: "ddp" or "fsdp"."""

    rank: int = 0
    size: int = 1
    strategy: str = "ddp"

    @property
    def main(self) -> bool:
        return self.rank == 0

    def share(self, parts: int) -> Share:
        """This rank's share of a batch that is trained on in so many parts."""
        return Share(self.rank, self.size, parts)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to call in a step. fsdp shards `model` in place."""
        if self.size == 1:
            return model
        if self.strategy == "fsdp":
            return shard(model)
        # A front may hold heads that no loss reads, and DDP would wait for their gradients.
        return DistributedDataParallel(model, find_unused_parameters=getattr(model, "front", None) is not None)

    def accumulating(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients of all but a step's last part stay where they are."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        if isinstance(model, DistributedDataParallel) and not last:
            return cast(AbstractContextManager[Any], model.no_sync())
        return nullcontext()

    def total(self, value: Tensor) -> float:
        """The sum over the ranks."""
        value = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(value)
        return float(value)

    def wait(self) -> None:
        """For all ranks to come here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(strategy: str, device: torch.device) -> Iterator[World]:
    """The world that torchrun describes in the environment; a world of one without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), strategy)
    finally:
        dist.destroy_process_group()


def shard(model: nn.Module) -> nn.Module:
    """FSDP2 over every layer and over what is left; the float32 parameters stay float32, for autocast chooses the precision."""
    for layer in model.get_submodule("layers").children():
        fully_shard(layer)
    return cast(nn.Module, fully_shard(model))


def bare(model: nn.Module) -> nn.Module:
    """The model itself, without DDP around it."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Any) -> Any:
    """All of a tensor, on the CPU; every rank must ask. Anything else as it is."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().cpu() if isinstance(tensor, Tensor) else tensor


def like(value: Any, model: Any) -> Any:
    """`value` distributed as `model` is, where that is a sharded tensor of the same shape."""
    if isinstance(model, DTensor) and isinstance(value, Tensor) and value.shape == model.shape:
        return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
    return value


def gather_model(model: nn.Module) -> dict[str, Any]:
    """The whole state dict, on the CPU. Every rank must ask."""
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def scatter_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a whole state dict into a model that may be sharded."""
    current = model.state_dict()
    model.load_state_dict({name: like(value, current.get(name)) for name, value in state.items()})


def gather_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's whole state, on the CPU. Every rank must ask."""
    state = optimizer.state_dict()
    moments = {i: {key: whole(value) for key, value in entry.items()} for i, entry in state["state"].items()}
    return {**state, "state": moments}


def scatter_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a whole optimizer state where the parameters may be sharded."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {i: {key: like(value, parameters[i]) for key, value in entry.items()} for i, entry in state["state"].items()}
    optimizer.load_state_dict({**state, "state": moments})
