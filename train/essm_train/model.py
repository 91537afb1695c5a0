"""ES-SSM (arXiv 2601.22488) in torch. Parameter names are the checkpoint's tensor names, so a state dict maps one to one.

Per layer, with a budget of K channels out of k_max:

    r += DropPath(S_K(LN1(r)))        r += DropPath(FFN(LN2(r)))
    S_K(u)(t) = sum_{k<=K} sigmoid(s_k(t)) / sqrt(K) · (Phi_k * u)(t) @ M_k        s = W2 GELU(W1 u + b1) + b2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from essm_train.convolution import Mixer, default_mixer

ONE = 40.0  # a score whose sigmoid is exactly 1.0, in float32 and in float64


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model, whose input is tokens (`vocab_size`) or vectors (`input_size`).

    num_labels: outputs of a head over the mean over time, or at every position where not `pooled`; 0: a head over the
    vocabulary at every position, tied to the embedding. gate: see Gate. checkpointing: keep no activations of the layers.
    """

    hidden_size: int
    num_hidden_layers: int
    seq_len: int
    k_max: int = 32
    vocab_size: int | None = None
    input_size: int | None = None
    num_labels: int = 0
    layer_norm_eps: float = 1e-5
    dropout: float = 0.1
    drop_path: float = 0.1
    pooled: bool = True
    gate: str = "adaptive"
    checkpointing: bool = False

    @property
    def tied(self) -> bool:
        return self.num_labels == 0

    @property
    def gate_hidden_size(self) -> int:
        return self.hidden_size // 2

    @property
    def intermediate_size(self) -> int:
        return 4 * self.hidden_size


class Dropout(nn.Module):
    """nn.Dropout with a cheaper mask on a CPU, where torch's own costs a sixth of a step: 16 random bits an element."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0 or x.device.type != "cpu":
            return F.dropout(x, self.rate, self.training)
        words = torch.empty((x.numel() + 1) // 2, dtype=torch.int32, device="cpu").random_(-(2**31), 2**31 - 1)
        kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= round(self.rate * 2**16) - 2**15
        return x * kept.to(x.dtype).mul_(1.0 / (1.0 - self.rate))


class Bank(nn.Module):
    """The fixed Hankel filters [k_max, L] and their eigenvalues, float64 as they travel in the checkpoint."""

    filters: Tensor
    sigma: Tensor

    def __init__(self, filters: npt.NDArray[np.float64], sigma: npt.NDArray[np.float64]) -> None:
        super().__init__()
        self.register_buffer("filters", torch.tensor(np.asarray(filters), dtype=torch.float64))
        self.register_buffer("sigma", torch.tensor(np.asarray(sigma), dtype=torch.float64))


class Gate(nn.Module):
    """g_k(t) = sigmoid(s_k(t)) / sqrt(K) for k <= K, where K is the budget in use, not k_max.

    s is a small network of the input (`adaptive`), its output bias alone (`static`: one trained number a channel), or constant
    (`uniform`: g = 1 / sqrt(K)). The last two keep the weights that they do not use at zero, so that each is a
    checkpoint of the same format that computes the same gates.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(config.hidden_size, config.gate_hidden_size)
        self.out = nn.Linear(config.gate_hidden_size, config.k_max)
        self.adaptive = config.gate == "adaptive"
        nn.init.constant_(self.out.bias, ONE if config.gate == "uniform" else -2.0)
        if not self.adaptive:
            for parameter in (*self.hidden.parameters(), self.out.weight):
                nn.init.zeros_(parameter).requires_grad_(False)
            self.out.bias.requires_grad_(config.gate == "static")

    def forward(self, u: Tensor, budget: int) -> Tensor:
        if not self.adaptive:
            gates = torch.sigmoid(self.out.bias[:budget]) / math.sqrt(budget)
            return gates.expand(*u.shape[:-1], budget)
        scores = F.linear(F.gelu(self.hidden(u)), self.out.weight[:budget], self.out.bias[:budget])
        return torch.sigmoid(scores) / math.sqrt(budget)


class Spectral(nn.Module):
    """S_K: gated, projected causal convolutions with the first K filters; float32 whatever autocast says.

    `mixer` is the way to compute it (see convolution); without one the filters' length decides.
    """

    mixer: Mixer | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Gate(config)
        self.projection = nn.Parameter(1e-3 * torch.randn(config.k_max, config.hidden_size, config.hidden_size))

    def forward(self, u: Tensor, filters: Tensor, budget: int) -> Tensor:
        with torch.autocast(u.device.type, enabled=False):
            u = u.float()
            mixer = self.mixer or default_mixer(filters.shape[1])
            return mixer(u, self.gate(u, budget), self.projection[:budget], filters[:budget].float())


class FeedForward(nn.Module):
    """d -> 4d -> d with exact GELU and dropout between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.dropout(F.gelu(self.up(x))))
        return out


class Layer(nn.Module):
    """One pre-norm residual block; `drop_path` is the chance that a sample skips a branch in training."""

    def __init__(self, config: ModelConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.spectral = Spectral(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn = FeedForward(config)
        self.drop_path = drop_path

    def forward(self, r: Tensor, filters: Tensor, budget: int) -> Tensor:
        r = r + self._drop(self.spectral(self.norm1(r), filters, budget))
        return r + self._drop(self.ffn(self.norm2(r)))

    def _drop(self, branch: Tensor) -> Tensor:
        return drop_samples(branch, self.drop_path, self.training)


class EsSsm(nn.Module):
    """The model: tokens [B, T] or vectors [B, T, input_size] to outputs, [B, num_labels] where pooled, else [B, T, n].

    A `front` takes the place of the input's Linear: it maps whatever the task's batches hold to vectors [B, T, hidden_size].
    """

    front: nn.Module | None

    def __init__(
        self,
        config: ModelConfig,
        filters: npt.NDArray[np.float64],
        sigma: npt.NDArray[np.float64],
        front: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_kind(config, front)
        self.config, self.front = config, front
        if config.vocab_size is not None:
            self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
            nn.init.normal_(self.embedding.weight, std=0.02)
            with torch.no_grad():
                self.embedding.weight[0].zero_()
        elif front is None:
            self.input = nn.Linear(config.input_size or 0, config.hidden_size)
        if not config.tied:
            self.head = nn.Linear(config.hidden_size, config.num_labels)
        last = max(1, config.num_hidden_layers - 1)
        self.layers = nn.ModuleList(Layer(config, config.drop_path * i / last) for i in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.bank = Bank(filters, sigma)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, budget: int | None = None) -> Tensor:
        """inputs [B, T] tokens or [B, T, input_size]; lengths [B] valid steps (all, where None); budget K in 1..k_max."""
        budget = self.config.k_max if budget is None else budget
        r = self.dropout(self.embed(inputs))
        for layer in self.layers:
            if self.config.checkpointing and self.training and torch.is_grad_enabled():
                r = checkpoint(layer, r, self.bank.filters, budget, use_reentrant=False)
            else:
                r = layer(r, self.bank.filters, budget)
        r = self.norm(r)
        if self.config.tied:
            return F.linear(r, self.embedding.weight)
        outputs: Tensor = self.head(mean_over_time(r, lengths) if self.config.pooled else r)
        return outputs

    def embed(self, inputs: Tensor) -> Tensor:
        """What the first layer sees, without dropout: [B, T, hidden_size]."""
        first = self.embedding if self.config.vocab_size is not None else self.input if self.front is None else self.front
        r: Tensor = first(inputs)
        return r


def check_kind(config: ModelConfig, front: nn.Module | None) -> None:
    """ValueError for a combination of inputs and outputs that is no model."""
    if (config.vocab_size is None) == (config.input_size is None):
        raise ValueError("a model takes either tokens (vocab_size) or vectors (input_size)")
    if config.tied and config.vocab_size is None:
        raise ValueError("a model without labels predicts its own vocabulary, and this one has none (vocab_size)")
    if front is not None and config.input_size != config.hidden_size:
        raise ValueError(f"a front makes vectors of hidden_size {config.hidden_size}; input_size says {config.input_size}")


def drop_samples(branch: Tensor, rate: float, training: bool) -> Tensor:
    """DropPath: in training a branch [B, T, d] is zero for a share `rate` of the samples, and larger for the others."""
    if not training or rate == 0.0:
        return branch
    kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= rate
    return branch * kept / (1.0 - rate)


def mean_over_time(r: Tensor, lengths: Tensor | None) -> Tensor:
    """Mean of r [B, T, d] over the first lengths[b] steps of each row -> [B, d]."""
    if lengths is None:
        return r.mean(dim=1)
    valid = (torch.arange(r.shape[1], device=r.device) < lengths[:, None])[..., None]
    return (r * valid).sum(dim=1) / lengths[:, None].to(r.dtype)


def count_parameters(model: nn.Module, budget: int) -> int:
    """Parameters of the model when only its first `budget` channels are kept."""
    sizes = ((name, parameter) for name, parameter in model.named_parameters())
    return sum(p.numel() // p.shape[0] * budget if is_elastic(name) else p.numel() for name, p in sizes)


def is_elastic(name: str) -> bool:
    """Whether a tensor's leading axis is the channel k, so that a budget is a prefix of it."""
    return name.startswith("bank.") or name.endswith(("spectral.projection", "gate.out.weight", "gate.out.bias"))
