"""Tokens and floating-point operations of a training step, and what share of a GPU's peak they are (MFU)."""

from __future__ import annotations

import torch

from essm_train.model import ModelConfig

# Dense bfloat16 operations a second, by the name that the driver gives (vendor's data sheets, without sparsity).
PEAK_BFLOAT16 = {
    "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12,
    "A10G": 70e12, "RTX 4090": 165e12, "RTX 5090": 210e12, "T4": 65e12,
}  # fmt: skip


def macs_per_token(config: ModelConfig, budget: int) -> int:
    """Multiply-accumulates of a forward pass: per layer K d^2 + K d/2 + d^2/2 + 8 d^2, and the head at every position.

    The convolution is left out, as the paper's table of stages counts it apart: what it takes depends on how it is computed.
    """
    d, k = config.hidden_size, budget
    layer = k * d * d + k * config.gate_hidden_size + d * config.gate_hidden_size + 2 * d * config.intermediate_size
    outputs = config.vocab_size or 0 if config.tied else 0 if config.pooled else config.num_labels
    return config.num_hidden_layers * layer + d * outputs + d * (config.input_size or 0)


def step_flops(config: ModelConfig, budget: int, tokens: int) -> float:
    """Of a forward and a backward pass: two operations a multiply-accumulate, three times."""
    return 6.0 * macs_per_token(config, budget) * tokens


def peak_flops(device: torch.device) -> float | None:
    """The device's bfloat16 peak; None for a CPU or a GPU that the table does not know, whose MFU is then not reported."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_BFLOAT16.items() if part in name), None)
