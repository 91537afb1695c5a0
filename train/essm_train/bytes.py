"""Train the byte-level language model, judge it at every budget, and write its checkpoint.

essm-train bytes --data FILE -o CHECKPOINT
"""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from essm_deploy.errors import UsageError
from essm_deploy.files import check_replaceable
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_train.byte_card import Provenance, write_card
from essm_train.chunked import CHUNK, mixer_for
from essm_train.evaluate import measure_quality
from essm_train.export import export_checkpoint, is_checkpoint
from essm_train.keywords import training_folder
from essm_train.model import EsSsm, count_parameters
from essm_train.pace import steps_within
from essm_train.settings import ByteSettings
from essm_train.tasks.bytes import Bytes
from essm_train.trainer import Run, setup_device, train


@dataclass(frozen=True)
class Request:
    """What the command was asked for. minutes: choose the number of steps by the pace of this machine."""

    data: Path
    output: Path
    provenance: Provenance
    minutes: float | None = None
    resume: bool = True


def train_bytes(request: Request, settings: ByteSettings, device: torch.device) -> None:
    """The whole run. The training state lies in `<output>.training` and is removed once the checkpoint is written."""
    check_replaceable(request.output, is_checkpoint)
    check_lengths(settings)
    setup_device(settings, device)
    run = Run(training_folder(request.output), request.resume)
    task = Bytes(request.data, settings, device)
    bank = hankel_bank(task.model_config.seq_len, task.model_config.k_max, method="exact")
    model = make_model(task, bank, settings.train.seed, device)
    provenance = request.provenance
    if request.minutes is not None:
        task.settings = settings = paced(request.minutes, model, task, run)
        provenance = dataclasses.replace(provenance, command=f"{provenance.command} --steps {task.steps}")
    started = clock(run)
    trained = train(model, task, settings, run)
    provenance = dataclasses.replace(provenance, hours=(time.time() - started) / 3600)
    write_result(request.output, provenance, task, trained, bank)
    run.state.unlink(missing_ok=True)


def make_model(task: Bytes, bank: Bank, seed: int, device: torch.device) -> EsSsm:
    """A freshly initialised model; the initial weights depend on the seed alone. On a CPU it trains in chunks of time."""
    torch.manual_seed(seed)
    model = EsSsm(task.model_config, bank.filters, bank.sigma)
    if device.type == "cpu":
        mixer = mixer_for(bank, task.settings.budgets.trained)
        for layer in model.layers:
            layer.spectral.mixer = mixer
    return model.to(device)


def write_result(output: Path, provenance: Provenance, task: Bytes, model: EsSsm, bank: Bank) -> None:
    """Measure every budget on the test split and write the checkpoint with its card."""
    settings = task.settings
    budgets = settings.budgets.trained
    quality, validation = (measure_quality(task, model, budgets, split) for split in ("test", "val"))
    parameters = count_parameters(model, settings.model.k_max)
    card = write_card(settings, task.text, quality, validation, parameters, provenance)
    export_checkpoint(output, model, bank, budgets, task.config_fields(), quality, card)


def paced(minutes: float, model: EsSsm, task: Bytes, run: Run) -> ByteSettings:
    """The recipe with as many steps as fit; a run that can be resumed was paced before, at another moment's pace."""
    if run.resume and run.state.exists():
        raise UsageError(f"{run.state}: --minutes cannot resume a run; repeat it with the --steps that it printed")
    steps = steps_within(minutes, model, task, task.settings)
    print(f"--steps {steps}", file=sys.stderr, flush=True)
    return with_steps(task.settings, steps)


def clock(run: Run) -> float:
    """When the run began, in seconds since the epoch; kept beside its state, so that a resumed run still knows."""
    begun = run.folder / "started"
    if not run.state.exists() or not run.resume or not begun.exists():
        run.folder.mkdir(parents=True, exist_ok=True)
        begun.write_text(f"{time.time():.0f}\n")
    return float(begun.read_text())


def check_lengths(settings: ByteSettings) -> None:
    """UsageError unless the lengths fit into each other and into the training step's chunks."""
    text = settings.text
    if text.short_len < CHUNK or text.short_len % CHUNK or text.seq_len % text.short_len:
        raise UsageError(
            f"text.short_len is {text.short_len}; expected a multiple of {CHUNK} that divides text.seq_len {text.seq_len}"
        )
    for key in ("interval", "val_bytes"):
        if getattr(text, key) < 1:
            raise UsageError(f"text.{key} is {getattr(text, key)}; expected 1 or more")
    if not 0.0 <= text.short_share <= 1.0:
        raise UsageError(f"text.short_share is {text.short_share}; expected 0 to 1")


def with_steps(settings: ByteSettings, steps: int | None) -> ByteSettings:
    """That many steps, rounded up to whole intervals; None leaves the recipe's."""
    return settings.with_train(epochs=None if steps is None else -(-steps // settings.text.interval))


def smoke(settings: ByteSettings) -> ByteSettings:
    """A run of seconds that exercises everything and learns next to nothing."""
    small = dataclasses.replace(settings, text=dataclasses.replace(settings.text, interval=2, val_bytes=4096))
    return small.with_train(epochs=2, eval_every=1)
