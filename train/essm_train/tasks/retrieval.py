"""Retrieval of Long Range Arena: whether one paper cites the other, from the bytes of both.

Two towers: the same model reads either paper and gives it a vector; the pair's logit is their dot product / sqrt(width). So
an app keeps one vector a paper. (Long Range Arena puts a two-layer classifier on both vectors instead.)

Data: lra_release/tsv_data with new_aan_pairs.{train,eval,test}.tsv, or a .json(.gz) of docs and cites (citations). Run on
acl_citation_pairs.json.gz. The AAN files could not be reached: their loader was run on made-up files in their layout only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from essm_train.settings import CommonSettings
from essm_train.tasks.citations import FILES, load_pairs
from essm_train.tasks.classification import Classification, check_positive, smaller, token_config
from essm_train.tasks.text import VOCAB_SIZE


@dataclass(frozen=True)
class Data:
    seq_len: int
    embedding: int
    val_samples: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


class Retrieval(Classification):
    """Targets are of pairs; outputs [2 B, embedding] are the towers'."""

    rows = 2

    def logits(self, outputs: Tensor) -> Tensor:
        """[B, 2]: 0 for unrelated, the scaled dot product for related."""
        first, second = outputs[0::2], outputs[1::2]
        score = (first * second).sum(dim=1) / outputs.shape[1] ** 0.5
        return torch.stack([torch.zeros_like(score), score], dim=1)

    def config_fields(self) -> dict[str, Any]:
        """The exported tower's outputs are the parts of a vector, not classes."""
        labels = {str(index): f"embedding_{index}" for index in range(self.model_config.num_labels)}
        comparison = {"kind": "scaled_dot_product", "scale": self.model_config.num_labels**-0.5}
        return {"task": "sequence-classification", "id2label": labels, "comparison": comparison, **self.data.fields}


def build(recipe: Recipe, data: Path, device: torch.device) -> Retrieval:
    """The task on these pairs."""
    config = token_config(recipe, recipe.data.seq_len, VOCAB_SIZE, recipe.data.embedding)
    return Retrieval("retrieval", load_pairs(data, recipe.data.seq_len), config, recipe, device, recipe.data.val_samples)


def check(recipe: Recipe) -> None:
    """UsageError where a length makes no sense."""
    check_positive(recipe, "seq_len", "embedding")


def smoke(recipe: Recipe) -> Recipe:
    """Short papers."""
    small: Recipe = smaller(recipe, seq_len=64, embedding=8)
    return small


def smoke_data(folder: Path) -> Path:
    """A few pairs in the layout of lra_release/tsv_data."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES.values():
        rows = [f"{i % 2}.0\ta{i}\tb{i}\ton topic {i}\t{'more on' if i % 2 else 'nothing of'} topic {i}" for i in range(8)]
        (folder / name).write_text("\n".join(rows) + "\n")
    return folder
