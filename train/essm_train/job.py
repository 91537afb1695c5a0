"""One run of one task: data, bank, model, training, judgement at every budget, checkpoint.

The training state lies in `<output>.training` and its large part is removed once the checkpoint is written; the log stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from essm_deploy.checkpoint import content_hash
from essm_deploy.errors import UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.files import check_replaceable
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_train.card import general_card
from essm_train.convolution import choose_mixer
from essm_train.device import setup_device
from essm_train.evaluate import measure_quality
from essm_train.export import export_checkpoint, is_checkpoint
from essm_train.loading import begin_with
from essm_train.model import EsSsm, ModelConfig, Spectral, count_parameters
from essm_train.pace import steps_within
from essm_train.parallel import World, gather_model, joined
from essm_train.settings import CommonSettings
from essm_train.tasks import Fronted, Result, Task
from essm_train.trainer import Run, train


@dataclass(frozen=True)
class Request:
    """What the command was asked for. data None: made-up data, for a smoke run. steps, minutes: instead of its epochs.

    init: a checkpoint whose weights the run begins with.
    """

    output: Path
    command: str
    data: Path | None = None
    source: str | None = None
    steps: int | None = None
    minutes: float | None = None
    resume: bool = True
    smoke: bool = False
    tensorboard: bool = False
    strategy: str = "ddp"
    init: Path | None = None


def train_task(module: ModuleType, request: Request, recipe: CommonSettings, device: torch.device) -> None:
    """The whole run of a task's module (see essm_train.tasks), in this process and in its torchrun neighbours."""
    check_replaceable(request.output, is_checkpoint)
    setup_device(device, recipe.train.threads)
    recipe = module.smoke(recipe) if request.smoke else recipe
    module.check(recipe)
    with data_of(module, request) as data, joined(request.strategy, device) as world:
        _Job(module, request, data, device, world).run(recipe)


@contextlib.contextmanager
def data_of(module: ModuleType, request: Request) -> Iterator[Path]:
    """The path of --data, or of made-up data that is deleted afterwards."""
    if request.data is not None:
        yield request.data
        return
    if not request.smoke:
        raise UsageError("--data is missing; only --smoke makes up its own")
    with tempfile.TemporaryDirectory() as folder:
        yield module.smoke_data(Path(folder))


class _Job:
    def __init__(self, module: ModuleType, request: Request, data: Path, device: torch.device, world: World) -> None:
        self.module, self.request, self.data, self.device, self.world = module, request, data, device, world
        init = None if request.init is None else content_hash(open_checkpoint(request.init))
        self.folder = Run(training_folder(request.output), request.resume, request.tensorboard, init)

    def run(self, recipe: CommonSettings) -> None:
        task: Task = self.module.build(recipe, self.data, self.device)
        bank = hankel_bank(task.model_config.seq_len, task.model_config.k_max, method="exact")
        recipe, task, command = self.paced(recipe, task, bank)
        model = make_model(task, bank, recipe, self.device)
        if self.request.init is not None:
            begin_with(model, self.request.init, task)
        started = clock(self.folder) if self.world.main else 0.0
        trained = train(model, task, recipe, self.folder, self.world)
        trained = consolidated(trained, task, bank, recipe, self.device, self.world)
        if self.world.main:
            self.write(trained, task, bank, recipe, command, (time.time() - started) / 3600)

    def paced(self, recipe: CommonSettings, task: Task, bank: Bank) -> tuple[CommonSettings, Task, str]:
        """The recipe with the epochs that --steps or --minutes ask for."""
        steps, command = self.request.steps, self.request.command
        if self.request.minutes is not None:
            if self.folder.resume and self.folder.state.exists():
                raise UsageError(
                    f"{self.folder.state}: --minutes cannot resume a run; repeat it with the --steps that it printed"
                )
            steps = steps_within(self.request.minutes, make_model(task, bank, recipe, self.device), task, recipe)
            print(f"--steps {steps}", file=sys.stderr, flush=True)
            command = f"{command} --steps {steps}"
        if steps is None:
            return recipe, task, command
        recipe = recipe.with_train(epochs=-(-steps // task.steps_per_epoch))
        return recipe, self.module.build(recipe, self.data, self.device), command

    def write(self, model: EsSsm, task: Task, bank: Bank, recipe: CommonSettings, command: str, hours: float) -> None:
        """Measure every budget and write the checkpoint with its card."""
        budgets = recipe.budgets.trained
        quality, validation = (measure_quality(task, model, budgets, split) for split in ("test", "val"))
        result = Result(
            recipe,
            quality,
            validation,
            count_parameters(model, recipe.model.k_max),
            command,
            self.request.source,
            hours,
            init=None if self.request.init is None else self.request.init.name,
        )
        card = getattr(self.module, "card", general_card)(task, result)
        export_checkpoint(self.request.output, model, bank, budgets, task.config_fields(), quality, card)
        self.folder.state.unlink(missing_ok=True)


def make_model(task: Task, bank: Bank, recipe: CommonSettings, device: torch.device) -> EsSsm:
    """A freshly initialised model, whose weights depend on the seed alone, and which convolves as the recipe says."""
    torch.manual_seed(recipe.train.seed)
    front = task.front() if isinstance(task, Fronted) else None
    model = EsSsm(with_recipe(task.model_config, recipe), bank.filters, bank.sigma, front)
    mixer = choose_mixer(recipe.train.convolution, bank, recipe.budgets.trained, device)
    for module in model.modules():
        if isinstance(module, Spectral):
            module.mixer = mixer
    return model.to(device)


def with_recipe(config: ModelConfig, recipe: CommonSettings) -> ModelConfig:
    """A task's sizes with what the recipe says of every model."""
    m = recipe.model
    return dataclasses.replace(
        config,
        hidden_size=m.hidden_size,
        num_hidden_layers=m.num_hidden_layers,
        k_max=m.k_max,
        dropout=m.dropout,
        drop_path=m.drop_path,
        gate=m.gate,
        checkpointing=recipe.train.checkpointing,
    )


def consolidated(model: EsSsm, task: Task, bank: Bank, recipe: CommonSettings, device: torch.device, world: World) -> EsSsm:
    """The whole trained model on rank 0, out of the ranks' shares."""
    if world.size == 1 or world.strategy != "fsdp":
        return model
    state = gather_model(model)
    if not world.main:
        return model
    whole = make_model(task, bank, recipe, device)
    whole.load_state_dict(state)
    return whole


def clock(run: Run) -> float:
    """When the run began, in seconds since the epoch; kept beside its state, so that a resumed run still knows."""
    begun = run.folder / "started"
    if not run.state.exists() or not run.resume or not begun.exists():
        run.folder.mkdir(parents=True, exist_ok=True)
        begun.write_text(f"{time.time():.0f}\n")
    return float(begun.read_text())


def training_folder(output: Path) -> Path:
    """Where the run's state and log lie: beside the checkpoint, for a checkpoint holds nothing else."""
    return output.with_name(output.name + ".training")


def describe(recipe: Any) -> str:
    """A recipe as TOML lines, for a card or a table."""
    lines = []
    for section, values in recipe.to_dict().items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
