"""Train the keyword spotter, judge it at every budget, and write its checkpoint.

essm-train keywords --data-dir DIR -o CHECKPOINT
"""

from __future__ import annotations

from pathlib import Path

import torch

from essm_deploy.files import check_replaceable
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_train.card import write_card
from essm_train.evaluate import measure_quality
from essm_train.export import export_checkpoint, is_checkpoint
from essm_train.model import EsSsm
from essm_train.settings import Settings
from essm_train.tasks.keywords import Keywords
from essm_train.tasks.speech_commands import SPLITS, WORDS
from essm_train.trainer import Run, setup_device, train


def train_keywords(data_dir: Path, output: Path, settings: Settings, device: torch.device, resume: bool, command: str) -> None:
    """The whole run. The training state lies in `<output>.training` and is removed once the checkpoint is written."""
    check_replaceable(output, is_checkpoint)
    setup_device(settings, device)
    run = Run(training_folder(output), resume)
    task = Keywords(data_dir, settings, device)
    bank = hankel_bank(task.model_config.seq_len, task.model_config.k_max)
    model = make_model(task, bank, settings.train.seed).to(device)
    trained = train(model, task, settings, run)
    write_result(output, task, trained, bank, settings, command)
    run.state.unlink(missing_ok=True)


def make_model(task: Keywords, bank: Bank, seed: int) -> EsSsm:
    """A freshly initialised model; the initial weights depend on the seed alone."""
    torch.manual_seed(seed)
    return EsSsm(task.model_config, bank.filters, bank.sigma)


def write_result(output: Path, task: Keywords, model: EsSsm, bank: Bank, settings: Settings, command: str) -> None:
    """Measure every budget on the test split and write the checkpoint with its card."""
    budgets = settings.budgets.trained
    quality = measure_quality(task, model, budgets, "test")
    validation = measure_quality(task, model, budgets, "val")["budgets"]
    counts = {split: task.samples(split) for split in SPLITS}
    card = write_card(settings, quality, validation, counts, task.steps_per_epoch, list(WORDS), command)
    export_checkpoint(output, model, bank, budgets, task.config_fields(), quality, card)


def training_folder(output: Path) -> Path:
    """Where the run's state and log lie: beside the checkpoint, for a checkpoint holds nothing else."""
    return output.with_name(output.name + ".training")


def smoke(settings: Settings) -> Settings:
    """A run of seconds that exercises everything and learns next to nothing."""
    return settings.with_train(epochs=min(2, settings.train.epochs), eval_every=1)
