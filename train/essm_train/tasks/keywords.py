"""Keyword spotting: one second of speech, ten words, log-mel features, mean pooling, a linear head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from essm_deploy.frontend import LogMel
from essm_train.keyword_card import write_card
from essm_train.model import ModelConfig
from essm_train.settings import Settings
from essm_train.share import ALL, Share
from essm_train.tasks import Batch, Result, Whole
from essm_train.tasks.augment import Array, Augment, Draws, Ints, draw_mix, mix
from essm_train.tasks.speech_commands import WORDS, Clips, load_clips
from essm_train.tasks.tones import write_tones

EVAL_BATCH = 64

Recipe = Settings


class Keywords:
    """The Task of the ten words. Reads the whole data set into memory, as int16."""

    name = "keywords"
    metric = "accuracy"
    direction = "maximize"

    def __init__(self, data_dir: Path, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.clips = load_clips(data_dir, LogMel())
        self.frontend = fit_normalisation(LogMel(), self.clips["train"])
        self.augment = Augment(settings.augment, self.frontend, settings.train.seed)
        self.steps_per_epoch = -(-len(self.clips["train"]) // settings.train.batch_size)
        self.model_config = make_model_config(settings, self.frontend)
        self._features: dict[str, tuple[Tensor, Tensor]] = {}

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Augmented clips, and where augment.mixup says so each mixed with another one."""
        clips, mixup = self._drawn(step), self.settings.augment.mixup
        rng = np.random.default_rng([self.settings.train.seed, 3, step])
        draws, mine = self.augment.draw(len(clips), rng), share.rows(len(clips))
        if mixup > 0.0:
            arrays = self._mixed(clips, draws, mine, *draw_mix(len(clips), mixup, rng))
        else:
            arrays = self._augmented(clips[mine], draws.of(mine))
        inputs, lengths, targets = (torch.from_numpy(array).to(self.device) for array in arrays)
        return Batch(inputs, lengths, targets, whole=Whole(len(clips)))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy against smoothed target distributions [B, 10]."""
        return F.cross_entropy(logits.float(), targets, label_smoothing=self.settings.train.label_smoothing)

    def evaluate(self, model: nn.Module, split: str, budget: int) -> float:
        """Share of the split's clips whose best-scored word is the right one."""
        scores, labels = self.scores(model, split, budget)
        return float(np.mean(scores.argmax(dim=1).numpy() == labels.numpy()))

    @torch.no_grad()
    def scores(self, model: nn.Module, split: str, budget: int) -> tuple[Tensor, Tensor]:
        """Logits [n, 10] and labels [n] of the split's clips, on the CPU."""
        features, frames = self._split_features(split)
        was_training = model.training
        model.eval()
        parts = zip(torch.split(features, EVAL_BATCH), torch.split(frames, EVAL_BATCH), strict=True)
        logits = [model(x.to(self.device), n.to(self.device), budget).float().cpu() for x, n in parts]
        model.train(was_training)
        return torch.cat(logits), torch.from_numpy(np.asarray(self.clips[split].labels, dtype=np.int64))

    def samples(self, split: str) -> int:
        return len(self.clips[split])

    def config_fields(self) -> dict[str, Any]:
        labels = {str(index): word for index, word in enumerate(WORDS)}
        return {"task": "audio-classification", "id2label": labels, "frontend": self.frontend.to_config()}

    def adopt(self, config: Mapping[str, Any]) -> None:
        """Judge with the front end that a checkpoint was trained with."""
        self.frontend, self._features = LogMel.from_config(config["frontend"]), {}

    def _drawn(self, step: int) -> Ints:
        """The training clips of a step."""
        (epoch, position), size = divmod(step, self.steps_per_epoch), self.settings.train.batch_size
        order = np.random.default_rng([self.settings.train.seed, 2, epoch]).permutation(len(self.clips["train"]))
        return order[position * size : (position + 1) * size]

    def _mixed(self, clips: Ints, draws: Draws, mine: Ints, kept: Array, other: Ints) -> tuple[Array, Ints, Array]:
        """Features, valid frames and target distributions of `mine`; the others that they are mixed with are built as well."""
        built = np.union1d(mine, other[mine])
        features, frames, targets = self._augmented(clips[built], draws.of(built))
        a, b = np.searchsorted(built, mine), np.searchsorted(built, other[mine])
        return mix(features[a], features[b], kept[mine]), frames[a], mix(targets[a], targets[b], kept[mine])

    def _augmented(self, rows: Ints, draws: Draws) -> tuple[Array, Ints, Array]:
        """Features, valid frames and target distributions of training clips."""
        clips = self.clips["train"]
        features, frames = self.augment.apply(clips.floats(rows), clips.lengths[rows], draws)
        return features, frames, np.eye(len(WORDS), dtype=np.float32)[clips.labels[rows]]

    def _split_features(self, split: str) -> tuple[Tensor, Tensor]:
        """Features exactly as the device computes them, one clip at a time; kept, for they never change."""
        if split not in self._features:
            clips = self.clips[split]
            pairs = [self.frontend(clips.floats(slice(i, i + 1))[0, :n]) for i, n in enumerate(clips.lengths)]
            features = torch.from_numpy(np.stack([pair[0] for pair in pairs]))
            self._features[split] = features, torch.tensor([pair[1] for pair in pairs])
        return self._features[split]


def fit_normalisation(frontend: LogMel, clips: Clips) -> LogMel:
    """The front end with mean and standard deviation of each band over all training clips' frames."""
    total, squares, count = np.zeros(frontend.n_mels), np.zeros(frontend.n_mels), 0
    for start in range(0, len(clips), EVAL_BATCH):
        bands = frontend.log_bands(frontend.power(clips.floats(slice(start, start + EVAL_BATCH)))).astype(np.float64)
        valid = np.arange(frontend.frames) * frontend.hop < clips.lengths[start : start + EVAL_BATCH, None]
        total += bands[valid].sum(axis=0)
        squares += (bands[valid] ** 2).sum(axis=0)
        count += int(valid.sum())
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))
    rounded = [tuple(round(float(value), 5) for value in values) for values in (mean, std)]
    return dataclasses.replace(frontend, mean=rounded[0], std=rounded[1])


def make_model_config(settings: Settings, frontend: LogMel) -> ModelConfig:
    """The classifier's sizes: one step per frame, one input per mel band."""
    m = settings.model
    return ModelConfig(
        hidden_size=m.hidden_size,
        num_hidden_layers=m.num_hidden_layers,
        seq_len=frontend.frames,
        k_max=m.k_max,
        input_size=frontend.n_mels,
        num_labels=len(WORDS),
        dropout=m.dropout,
        drop_path=m.drop_path,
    )


def build(recipe: Settings, data: Path, device: torch.device) -> Keywords:
    return Keywords(data, recipe, device)


def check(recipe: Settings) -> None:
    """Whatever the sections say on their own is fine together."""


def smoke(recipe: Settings) -> Settings:
    """A narrow model and two epochs, which learn next to nothing."""
    m = recipe.model
    model = dataclasses.replace(m, hidden_size=min(16, m.hidden_size), num_hidden_layers=min(2, m.num_hidden_layers))
    return dataclasses.replace(recipe, model=model).with_train(epochs=min(2, recipe.train.epochs), eval_every=1)


def smoke_data(folder: Path) -> Path:
    """Tones in place of words."""
    return write_tones(folder)


def card(task: Keywords, result: Result) -> str:
    return write_card(task, result)
