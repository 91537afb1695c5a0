"""The next base of a genome: a language model of A, C, G and T, in bits per base. Chance is 2.

Data: a FASTA file, or a folder of *.fa, *.fasta and *.fna; .gz or not (fasta). The last 5 % of each long stretch of known
bases are the test split, the 5 % before it the validation split. Each training sequence is read from either strand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_train.model import ModelConfig
from essm_train.settings import CommonSettings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Whole
from essm_train.tasks.bytes import bits_per_byte
from essm_train.tasks.classification import check_positive, sizes, smaller
from essm_train.tasks.fasta import BASES, PAD, VOCAB_SIZE, Bases, Genome, read_genome, reverse_complement
from essm_train.tasks.text import shift, windows


@dataclass(frozen=True)
class Data:
    seq_len: int
    both_strands: bool
    interval: int
    val_bases: int
    test_bases: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


class Dna:
    """The Task of a genome, which is read into memory. An epoch of the trainer is data.interval steps."""

    name = "dna"
    metric = "bits_per_base"
    direction = "minimize"

    def __init__(self, recipe: Recipe, genome: Genome, device: torch.device) -> None:
        self.recipe, self.genome, self.device = recipe, genome, device
        self.steps_per_epoch = recipe.data.interval
        self.model_config = ModelConfig(seq_len=recipe.data.seq_len, vocab_size=VOCAB_SIZE, **sizes(recipe))
        starts = [max(1, len(stretch) - recipe.data.seq_len + 1) for stretch in genome.train]
        self.firsts = np.concatenate([[0], np.cumsum(starts)])

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Sequences that start anywhere in the training stretches, every second one from the other strand."""
        rows, rng = self.recipe.train.batch_size, np.random.default_rng([self.recipe.train.seed, 3, step])
        places = rng.integers(0, self.firsts[-1], rows)
        backwards = rng.integers(2, size=rows) if self.recipe.data.both_strands else np.zeros(rows, np.int64)
        lengths, mine = np.array([len(self._stretch(int(place))) for place in places]), share.rows(rows)
        targets = np.full((len(mine), self.recipe.data.seq_len), PAD, np.int64)
        for row, i in enumerate(mine.tolist()):
            part = self._stretch(int(places[i])).astype(np.int64)
            targets[row, : lengths[i]] = reverse_complement(part) if backwards[i] else part
        arrays = (*shift(targets), lengths[mine])
        tokens, wanted, weights = (torch.from_numpy(array).to(self.device) for array in arrays)
        return Batch(tokens, None, wanted, weights, Whole(rows, int(lengths.sum())))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the targets that are bases."""
        smoothing = self.recipe.train.label_smoothing
        return F.cross_entropy(outputs.float().flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Bits per base over the split's first data.val_bases or data.test_bases, in sequences that each start anew."""
        inputs, targets = zip(*(windows(part, self.recipe.data.seq_len) for part in self._parts(split)), strict=True)
        return bits_per_byte(model, np.concatenate(inputs), np.concatenate(targets), budget, self.device)

    def samples(self, split: str) -> int:
        limit = self.recipe.data.val_bases if split == "val" else self.recipe.data.test_bases
        return min(limit or self.genome.count(split), self.genome.count(split))

    def config_fields(self) -> dict[str, Any]:
        return {"task": "text-generation", "preprocessing": {"kind": "bases", "alphabet": BASES, "offset": 2}}

    def source(self) -> str:
        counts = ", ".join(f"{split} {self.genome.count(split)}" for split in ("train", "val", "test"))
        return f"Bases: {counts}. The held-out ones are the ends of the long stretches of known bases."

    def _stretch(self, place: int) -> Bases:
        """The sequence that starts at a place counted over all stretches."""
        number = int(np.searchsorted(self.firsts, place, side="right")) - 1
        start = place - int(self.firsts[number])
        return self.genome.train[number][start : start + self.recipe.data.seq_len]

    def _parts(self, split: str) -> list[Bases]:
        """The stretches up to the limit, as `windows` takes them: bases 0 to 3, to which it adds 2."""
        left, found = self.samples(split), []
        for stretch in self.genome[split]:
            if left > 0:
                found.append(stretch[:left] - np.uint8(2))
                left -= len(found[-1])
        return found


def build(recipe: Recipe, data: Path, device: torch.device) -> Dna:
    """The task on this genome."""
    return Dna(recipe, read_genome(data, recipe.data.seq_len), device)


def check(recipe: Recipe) -> None:
    """UsageError where a length makes no sense."""
    check_positive(recipe, "seq_len", "interval")


def smoke(recipe: Recipe) -> Recipe:
    """Short sequences."""
    small: Recipe = smaller(recipe, seq_len=64, interval=2, val_bases=128, test_bases=128)
    return small


def smoke_data(folder: Path) -> Path:
    """Two records of random bases, one with unknown ones in it."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = np.random.default_rng(0).choice(list(BASES), 4000)
    records = {
        "first": "".join(letters[:2500]),
        "second": "".join(letters[2500:3000]) + "NNNN" + "".join(letters[3000:]).lower(),
    }
    lines = [
        f">{name} made up\n" + "\n".join(text[i : i + 60] for i in range(0, len(text), 60)) for name, text in records.items()
    ]
    (folder / "genome.fa").write_text("\n".join(lines) + "\n")
    return folder / "genome.fa"
