"""The command `essm-train`: parse, call, print. One command for each task of the registry."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from essm_deploy import __version__
from essm_deploy.errors import BuildError, EssmError, UnavailableError, UsageError
from essm_train.registry import TASKS, Entry

INTERRUPTED = 130

_OPTIONS = (
    click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The checkpoint to write."),
    click.option("--config", help="A TOML file, or a variant's name, whose keys replace the recipe's."),
    click.option("--seed", type=click.IntRange(0), help="Replaces train.seed of the recipe."),
    click.option("--epochs", type=click.IntRange(1), help="Replaces train.epochs of the recipe."),
    click.option("--steps", type=click.IntRange(1), help="The same in steps, rounded up to whole epochs."),
    click.option("--minutes", type=click.FloatRange(0, min_open=True), help="As many steps as fit; prints their number."),
    click.option("--init", type=click.Path(path_type=Path), help="Begin with the weights of a checkpoint of the same sizes."),
    click.option("--source", help="The data and its licence in words, for the model card."),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is a GPU."),
    click.option(
        "--strategy", type=click.Choice(["ddp", "fsdp"]), default="ddp", help="Under torchrun: how to share the model."
    ),
    click.option("--tensorboard", is_flag=True, help="Write TensorBoard events beside the log."),
    click.option("--resume/--no-resume", default=True, help="Go on from the state that a killed run left."),
    click.option("--smoke", is_flag=True, help="A tiny run, on made-up data without --data: does everything work?"),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="essm-train")
def cli() -> None:
    """Train elastic checkpoints that essm-deploy compiles."""


@cli.command("list")
def list_tasks() -> None:
    """The tasks, what their data is, and the variants of their recipes."""
    from essm_train.settings import variants

    width = max(len(name) for name in TASKS)
    for name, entry in TASKS.items():
        others = ", ".join(variants(name))
        click.echo(f"{name:<{width}}  {entry.summary}\n{'':<{width}}  {entry.data}{f'; --config {others}' if others else ''}")
        if entry.run_on:
            click.echo(f"{'':<{width}}  run on {entry.run_on}")


@cli.command("evaluate")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--task", "name", help="The task to judge it on. Default: the one that its card's command names.")
@click.option("--data", "--data-dir", "data", type=click.Path(path_type=Path), required=True, help="As in training.")
@click.option("--config", help="The recipe that it was trained with, where that was not the packaged one.")
@click.option("--budgets", default="trained", help="trained, all (every K), or a list such as 2,8,32.")
@click.option("--split", type=click.Choice(["val", "test"]), default="test")
@click.option("--engine", type=click.Path(path_type=Path), help="Judge a bundle's engines instead of the checkpoint's weights.")
@click.option("--channels", is_flag=True, help="Also knock out one channel after the other: K more evaluations.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A folder for quality.json and quality.png.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is a GPU.")
def evaluate(checkpoint: Path, data: Path, output: Path | None, device: str | None, **options: Any) -> None:
    """Judge a checkpoint at every budget: the metric, the sweet spot, where it collapses, calibration, channels."""
    report = _needs_torch("essm_train.report")
    where = _needs_torch("essm_train.device").choose_device(device)
    wanted = report.Wanted(checkpoint, data, **options)
    document = report.evaluate_checkpoint(wanted, where)
    if output is not None:
        report.write_report(output, document)
    click.echo(report.to_text(document))


def _add_command(entry: Entry) -> None:
    """The command of one task, whose options are those of all."""

    def command(data: Path | None, **options: Any) -> None:
        train(entry, data, **options)

    command.__doc__ = f"Train on {entry.summary}."
    data = click.option("--data", "--data-dir", "data", type=click.Path(path_type=Path), help=entry.data.split(" ", 1)[1])
    decorated: Any = command
    for option in reversed((data, *_OPTIONS)):
        decorated = option(decorated)
    cli.command(entry.name)(decorated)


def train(
    entry: Entry, data: Path | None, output: Path, config: str | None, seed: int | None, epochs: int | None, smoke: bool,
    device: str | None, **options: Any,
) -> None:  # fmt: skip
    """Train an entry's task and print where its checkpoint is."""
    if options["minutes"] is not None and (options["steps"] is not None or smoke):
        raise UsageError("--minutes chooses the number of steps; drop it, or drop --steps and --smoke")
    if data is None and not smoke:
        raise UsageError(
            f"{entry.name}: --data is missing; expected {entry.data.split(' ', 1)[1]}, or --smoke for made-up data"
        )
    job = _needs_torch("essm_train.job")
    module = entry.load()
    from essm_train.device import choose_device
    from essm_train.settings import load_recipe

    recipe = load_recipe(module.Recipe, entry.name, config).with_train(seed=seed, epochs=epochs)
    shown = {"--config": config and Path(config).name, "--seed": seed, "--epochs": epochs, "--steps": options["steps"]}
    shown["--init"] = options["init"] and options["init"].name
    command = _command(f"{entry.name} {_data_of(entry, data)}", shown.items(), smoke)
    job.train_task(module, job.Request(output, command, data, smoke=smoke, **options), recipe, choose_device(device))
    if os.environ.get("RANK", "0") == "0":
        click.echo(output)


def _data_of(entry: Entry, data: Path | None) -> str:
    """The data for the card: as the entry spells it, unless what was given is a word or a name of the hub, and no path."""
    given = str(data)
    named = given == "generated" or (given.startswith("hf:") and not Path(given.removeprefix("hf:")).exists())
    return f"--data {given}" if named else entry.data


def _command(task: str, options: Iterable[tuple[str, object]], smoke: bool) -> str:
    """The command for the model card: what decides the result, without the paths of this machine."""
    words = ["essm-train", *task.split(), "-o", "CHECKPOINT"]
    for option, value in options:
        words += [option, str(value)] if value is not None else []
    return shlex.join([*words, *["--smoke"] * smoke])


def _needs_torch(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnavailableError(f"training needs {error.name}: pip install 'essm-deploy[train]'") from error


for _entry in TASKS.values():
    _add_command(_entry)


def main() -> None:
    """Entry point of `essm-train`: an error is one line and an exit code."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        cli.main(arguments, prog_name="essm-train", standalone_mode=False)
        return 0
    except EssmError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; the same command goes on from the last saved epoch", INTERRUPTED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}; free some space or choose another place", BuildError.exit_code)
    except Exception as error:
        traceback.print_exc()
        return _fail(f"internal error ({type(error).__name__}); this is a bug in essm-train, please report it", 4)


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
