"""The whole model in torch around any spelling of the convolution, from the same checkpoint, at one budget."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.checkpoint import Checkpoint
from tests.benchmarks.peers.spellings import SPELLINGS


class PeerModel(nn.Module):
    """Inputs [1, L] tokens or [1, L, input_size] features, all of them valid, to logits; weights are cut to `budget`."""

    def __init__(self, checkpoint: Checkpoint, budget: int, spelling: str) -> None:
        super().__init__()
        config = checkpoint.config
        self.pooled = "id2label" in config
        self.tokens = "vocab_size" in config
        if self.tokens:
            self.embedding = nn.Parameter(_tensor(checkpoint, "embedding.weight"))
        else:
            self.input = _linear(checkpoint, "input")
        if not config["tie_word_embeddings"]:
            self.head = _linear(checkpoint, "head")
        layers = range(config["num_hidden_layers"])
        self.layers = nn.ModuleList(PeerLayer(checkpoint, f"layers.{i}", budget, spelling) for i in layers)
        self.norm = _norm(checkpoint, "norm")

    def forward(self, inputs: Tensor) -> Tensor:
        r = F.embedding(inputs, self.embedding) if self.tokens else self.input(inputs)
        for layer in self.layers:
            r = layer(r)
        r = self.norm(r)
        if self.pooled:
            r = r.mean(dim=1)
        return F.linear(r, self.embedding) if not hasattr(self, "head") else self.head(r)


class PeerLayer(nn.Module):
    """r + S_K(LN1(r)), then r + FFN(LN2(r))."""

    def __init__(self, checkpoint: Checkpoint, name: str, budget: int, spelling: str) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(budget)
        self.norm1, self.norm2 = _norm(checkpoint, f"{name}.norm1"), _norm(checkpoint, f"{name}.norm2")
        self.gate_hidden = _linear(checkpoint, f"{name}.spectral.gate.hidden")
        self.gate_out = _linear(checkpoint, f"{name}.spectral.gate.out", budget)
        self.up, self.down = _linear(checkpoint, f"{name}.ffn.up"), _linear(checkpoint, f"{name}.ffn.down")
        filters = checkpoint.tensor("bank.filters")[:budget].copy()
        self.convolution = SPELLINGS[spelling](filters, _tensor(checkpoint, f"{name}.spectral.projection")[:budget])

    def forward(self, r: Tensor) -> Tensor:
        u = self.norm1(r)
        gates = torch.sigmoid(self.gate_out(F.gelu(self.gate_hidden(u)))) * self.scale
        r = r + self.convolution(u, gates)
        return r + self.down(F.gelu(self.up(self.norm2(r))))


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    return torch.tensor(checkpoint.tensor(name))


def _linear(checkpoint: Checkpoint, name: str, rows: int | None = None) -> nn.Linear:
    weight, bias = _tensor(checkpoint, f"{name}.weight")[:rows], _tensor(checkpoint, f"{name}.bias")[:rows]
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight.contiguous()), nn.Parameter(bias.contiguous())
    return linear


def _norm(checkpoint: Checkpoint, name: str) -> nn.LayerNorm:
    weight = _tensor(checkpoint, f"{name}.weight")
    norm = nn.LayerNorm(len(weight), eps=checkpoint.config["layer_norm_eps"])
    norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(_tensor(checkpoint, f"{name}.bias"))
    return norm


def trainer_model(checkpoint: Checkpoint, budget: int) -> nn.Module:
    """The trainer's own module, as it is, at a budget."""
    from essm_train.model import EsSsm, ModelConfig

    config = checkpoint.config
    sizes = ModelConfig(
        hidden_size=config["hidden_size"],
        num_hidden_layers=config["num_hidden_layers"],
        seq_len=config["seq_len"],
        k_max=config["k_max"],
        vocab_size=config.get("vocab_size"),
        input_size=config.get("input_size"),
        num_labels=len(config.get("id2label", ())),
        layer_norm_eps=config["layer_norm_eps"],
    )
    model = EsSsm(sizes, checkpoint.tensor("bank.filters"), checkpoint.tensor("bank.sigma"))
    model.load_state_dict({name: torch.tensor(tensor) for name, tensor in checkpoint.tensors.items()})
    return _AtBudget(model.eval(), budget)


class _AtBudget(nn.Module):
    def __init__(self, model: nn.Module, budget: int) -> None:
        super().__init__()
        self.model, self.budget = model, budget

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs, budget=self.budget)
