"""Transformer++: the Llama block in the place of ES-SSM's layer (arXiv 2601.22488, appendix F.1), as a classifier of vectors.

    r += DropPath(Attention(RMSNorm(r)))        r += DropPath(down(silu(gate(x)) · up(x))),  x = RMSNorm(r)

Attention is causal, as ES-SSM is, with rotary positions; no Linear of a block has a bias. Entrance, dropout, DropPath, mean
over time and head are those of essm_train.model, so that the two models differ in their blocks and norms alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_train.model import Dropout, ModelConfig, drop_samples, mean_over_time

HEADS = 2  # wide ones, as far as the width allows: Llama's have 64 and more; and more heads take longer
ROTARY_BASE = 10000.0


class Rotary(nn.Module):
    """Turns the pair (x_i, x_{i + n/2}) of position t by t · base^(-2i/n): q·k then knows the distance (arXiv 2104.09864)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, length: int) -> None:
        super().__init__()
        rates = ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., T, head_size] -> the same shape."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention of HEADS heads over [B, T, d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.inward(x).view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        out: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class SwiGlu(nn.Module):
    """d -> m -> d, gated by silu, with dropout where ES-SSM's feed-forward has it."""

    def __init__(self, width: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        out: Tensor = self.down(self.dropout(F.silu(gate) * value))
        return out


class Layer(nn.Module):
    """One pre-norm residual block; `drop_path` is the chance that a sample skips a branch in training."""

    def __init__(self, config: ModelConfig, intermediate_size: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = Attention(config.hidden_size)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn = SwiGlu(config.hidden_size, intermediate_size, config.dropout)
        self.drop_path = drop_path

    def forward(self, r: Tensor, rotary: Rotary) -> Tensor:
        r = r + drop_samples(self.attention(self.norm1(r), rotary), self.drop_path, self.training)
        return r + drop_samples(self.ffn(self.norm2(r)), self.drop_path, self.training)


class Transformer(nn.Module):
    """Vectors [B, T, input_size] to [B, num_labels], called as ES-SSM is. k_max and gate of the config mean nothing here.

    ValueError for a config that is no pooled classifier of vectors, or whose width HEADS rotary heads cannot share.
    """

    def __init__(self, config: ModelConfig, intermediate_size: int) -> None:
        super().__init__()
        check_config(config)
        d, layers = config.hidden_size, config.num_hidden_layers
        self.config, self.intermediate_size = config, intermediate_size
        self.input = nn.Linear(config.input_size or 0, d)
        self.layers = nn.ModuleList(
            Layer(config, intermediate_size, config.drop_path * i / max(1, layers - 1)) for i in range(layers)
        )
        self.norm = nn.RMSNorm(d, eps=config.layer_norm_eps)
        self.head = nn.Linear(d, config.num_labels)
        self.dropout = Dropout(config.dropout)
        self.rotary = Rotary(d // HEADS, config.seq_len)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, budget: int | None = None) -> Tensor:
        """inputs [B, T, input_size], T <= seq_len; lengths [B] valid steps (all, where None); a budget changes nothing."""
        r = self.dropout(self.input(inputs))
        for layer in self.layers:
            r = layer(r, self.rotary)
        logits: Tensor = self.head(mean_over_time(self.norm(r), lengths))
        return logits

    def step_flops(self, tokens: int) -> float:
        """Of a forward and a backward pass, counted as throughput.step_flops counts ES-SSM's: without the mixing over time."""
        d, m = self.config.hidden_size, self.intermediate_size
        macs = self.config.num_hidden_layers * (4 * d * d + 3 * d * m) + d * (self.config.input_size or 0)
        return 6.0 * macs * tokens


def check_config(config: ModelConfig) -> None:
    """ValueError for sizes that are no Transformer of this module."""
    if config.input_size is None or config.tied or not config.pooled:
        raise ValueError("a Transformer of this package takes vectors (input_size) and has a head over their mean (num_labels)")
    if config.hidden_size % (2 * HEADS):
        raise ValueError(f"hidden_size {config.hidden_size}: expected a multiple of {2 * HEADS}, for {HEADS} rotary heads")


def parameter_count(config: ModelConfig, intermediate_size: int) -> int:
    """Per layer 4 d^2 + 3 d m + 2 d, and the entrance, the last norm and the head."""
    d, inputs, labels = config.hidden_size, config.input_size or 0, config.num_labels
    layer = 4 * d * d + 3 * d * intermediate_size + 2 * d
    return config.num_hidden_layers * layer + (inputs + 1) * d + d + (d + 1) * labels
