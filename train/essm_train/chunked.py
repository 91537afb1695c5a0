"""The spectral sublayer in chunks of time: a training step's cost grows with T, not with T² or with an FFT a channel.

Within a chunk of C tokens the filters are applied as they are; what came before the chunk arrives through the states of one
small linear system that reproduces every filter of the bank (essm_deploy.spectral.realization). Both are one GEMM:

    features[C K, d] = [filters within the chunk | read-out of the state] @ [inputs of the chunk; state before it]

Gate and projection follow while the features of a few chunks are still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from essm_deploy.errors import BankError
from essm_deploy.spectral.bank import Bank
from essm_deploy.spectral.realization import NoRealization, realize

CHUNK = 32  # tokens; half again as fast as 64 on a CPU core, at every budget
GROUP = 16  # chunks whose features are made, gated and projected together
TOLERANCE = 1e-5  # of each filter, relative: below the rounding of a float32 training step


def mixer_for(bank: Bank, budgets: tuple[int, ...]) -> ChunkedMixer | None:
    """The mixer of a bank, or None where it has no small realization (short filters, noise): use the FFT then."""
    try:
        return ChunkedMixer(bank, budgets)
    except BankError:
        return None


class ChunkedMixer:
    """mixer(u [B, T, d], gates [B, T, K], projection [K, d_in, d_out]) -> S_K(u) [B, T, d_out], for T a multiple of CHUNK."""

    def __init__(self, bank: Bank, budgets: tuple[int, ...], chunk: int = CHUNK) -> None:
        self.chunk = chunk
        self.systems = {k: _System(bank, k, chunk) for k in budgets}

    def __call__(self, u: Tensor, gates: Tensor, projection: Tensor) -> Tensor:
        if u.shape[1] % self.chunk:
            raise ValueError(f"{u.shape[1]} tokens are not a multiple of the chunk of {self.chunk}")
        return _mix(u, gates, projection.flatten(0, 1), self.systems[gates.shape[2]].on(u.device))

    def __deepcopy__(self, memo: dict[int, Any]) -> ChunkedMixer:
        return self  # constants only: an averaged copy of a model shares them


class _System:
    """Constants of one budget K with r states: `local` [C K, C + r] rows (token, channel), `carry` [r, C + r]."""

    def __init__(self, bank: Bank, budget: int, chunk: int) -> None:
        system = realize(bank, tolerance=TOLERANCE, channels=budget)
        if isinstance(system, NoRealization):
            raise BankError(f"{budget} filters of length {bank.length} have no small realization: {system.reason}")
        power, inject = system.carry(chunk)
        lag = torch.arange(chunk)[:, None] - torch.arange(chunk)
        taps = torch.from_numpy(bank.filters[:budget].copy())[:, lag.clamp(min=0)] * (lag >= 0)
        within = taps.transpose(0, 1).reshape(chunk * budget, chunk)
        readout = torch.from_numpy(system.readout(chunk)).reshape(chunk * budget, system.states)
        self.budget, self.chunk, self.states = budget, chunk, system.states
        self.local = torch.cat([within, readout], dim=1).float()
        self.inject, self.power = torch.from_numpy(inject.copy()).float(), torch.from_numpy(power).float()

    def on(self, device: torch.device) -> _System:
        """Itself, with the constants on a device."""
        if self.local.device != device:
            self.local, self.inject, self.power = (x.to(device) for x in (self.local, self.inject, self.power))
        return self

    def spread(self, u: Tensor) -> Tensor:
        """u [B, T, d] -> [B, T / C, C + r, d]: each chunk's inputs, then the state before it."""
        batch, time, width = u.shape
        inputs = u.view(batch, time // self.chunk, self.chunk, width)
        out = u.new_empty(batch, time // self.chunk, self.chunk + self.states, width)
        out[:, :, : self.chunk] = inputs
        injected = torch.matmul(self.inject, inputs)
        state = torch.zeros_like(injected[:, 0])
        for c in range(inputs.shape[1]):
            out[:, c, self.chunk :] = state
            state = torch.matmul(self.power, state).add_(injected[:, c])
        return out

    def gather(self, grad: Tensor) -> Tensor:
        """The transpose of `spread`."""
        batch, chunks, _, width = grad.shape
        states = grad[:, :, self.chunk :]
        after = torch.zeros_like(states)  # gradient of the state after each chunk
        for c in range(chunks - 1, 0, -1):
            after[:, c - 1] = states[:, c] + torch.matmul(self.power.T, after[:, c])
        return (grad[:, :, : self.chunk] + torch.matmul(self.inject.T, after)).reshape(batch, chunks * self.chunk, width)


class _Mix(torch.autograd.Function):
    """Features, gate and projection, GROUP chunks at a time."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, gates: Tensor, projection: Tensor, system: _System) -> Tensor:
        spread = system.spread(u).flatten(0, 1)
        rows, width = u.shape[0] * u.shape[1], u.shape[2]
        features = u.new_empty(rows, system.budget, width)
        flat, out = gates.reshape(rows, system.budget, 1), u.new_empty(rows, projection.shape[1])
        for chunks, tokens in _groups(len(spread), system.chunk):
            part = features[tokens]
            torch.bmm(_repeat(system.local, spread[chunks]), spread[chunks], out=part.view(-1, len(system.local), width))
            torch.mm((part * flat[tokens]).flatten(1), projection, out=out[tokens])
        ctx.system = system
        ctx.save_for_backward(features, gates, projection)
        return out.view(*u.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        features, gates, projection = ctx.saved_tensors
        system, (batch, time) = ctx.system, gates.shape[:2]
        rows, width = batch * time, features.shape[2]
        grad, flat = grad.reshape(rows, -1), gates.reshape(rows, system.budget, 1)
        chunks_in_all, inputs = rows // system.chunk, system.chunk + system.states
        d_gates, d_projection = torch.empty_like(flat), torch.zeros_like(projection)
        d_spread = grad.new_empty(chunks_in_all, inputs, width)
        transposed = system.local.T.contiguous()
        for chunks, tokens in _groups(chunks_in_all, system.chunk):
            part = features[tokens]
            d_projection.addmm_((part * flat[tokens]).flatten(1).T, grad[tokens])
            d_gated = torch.mm(grad[tokens], projection.T).view_as(part)
            d_gates[tokens] = (d_gated * part).sum(dim=2, keepdim=True)
            d_features = d_gated.mul_(flat[tokens]).view(-1, len(system.local), width)
            torch.bmm(_repeat(transposed, d_features), d_features, out=d_spread[chunks])
        d_u = system.gather(d_spread.view(batch, -1, inputs, width))
        return d_u, d_gates.view_as(gates), d_projection, None


_mix: Callable[[Tensor, Tensor, Tensor, _System], Tensor] = _Mix.apply


def _groups(chunks: int, size: int) -> list[tuple[slice, slice]]:
    """Slices of the chunks, and of the tokens in them."""
    starts = range(0, chunks, GROUP)
    return [(slice(a, a + GROUP), slice(a * size, (a + GROUP) * size)) for a in starts]


def _repeat(matrix: Tensor, batch: Tensor) -> Tensor:
    return matrix.expand(len(batch), -1, -1)
