"""The command `essm-train`: parse, call, print. One command a task."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from essm_deploy import __version__
from essm_deploy.errors import EssmError, UnavailableError, UsageError

if TYPE_CHECKING:
    import torch

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="essm-train")
def cli() -> None:
    """Train elastic checkpoints that essm-deploy compiles."""


@cli.command()
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, help="Speech Commands v0.02, unpacked.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The checkpoint to write.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file whose keys replace the recipe's.")
@click.option("--seed", type=click.IntRange(0), help="Replaces train.seed of the recipe.")
@click.option("--epochs", type=click.IntRange(1), help="Replaces train.epochs of the recipe.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is a GPU.")
@click.option("--resume/--no-resume", default=True, help="Go on from the state that a killed run left.")
@click.option("--smoke", is_flag=True, help="Two epochs: does everything work?")
def keywords(
    data_dir: Path, output: Path, config: Path | None, seed: int | None, epochs: int | None, device: str | None,
    resume: bool, smoke: bool,
) -> None:  # fmt: skip
    """Train the ten-word keyword spotter and measure it at every budget."""
    try:
        from essm_train import keywords as task
    except ModuleNotFoundError as error:
        raise UnavailableError(f"training needs {error.name}: pip install 'essm-deploy[train]'") from error
    from essm_train.settings import load_settings

    settings = load_settings("keywords", config).with_train(seed=seed, epochs=epochs)
    settings = task.smoke(settings) if smoke else settings
    task.train_keywords(data_dir, output, settings, _device(device), resume, _command(config, seed, epochs, smoke))
    click.echo(output)


@cli.command("bytes")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="A text file, of any encoding.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The checkpoint to write.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file whose keys replace the recipe's.")
@click.option("--seed", type=click.IntRange(0), help="Replaces train.seed of the recipe.")
@click.option("--steps", type=click.IntRange(1), help="Steps, rounded up to whole intervals. Default: the recipe's.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="As many steps as fit; prints their number.")
@click.option("--source", default="A text that the author of this checkpoint did not name.", help="For the model card.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: cuda where there is a GPU.")
@click.option("--resume/--no-resume", default=True, help="Go on from the state that a killed run left.")
@click.option("--smoke", is_flag=True, help="Four steps: does everything work?")
def language_model(
    data: Path, output: Path, config: Path | None, seed: int | None, steps: int | None, minutes: float | None, source: str,
    device: str | None, resume: bool, smoke: bool,
) -> None:  # fmt: skip
    """Train a byte-level language model on a text and measure it at every budget."""
    if minutes is not None and (steps is not None or smoke):
        raise UsageError("--minutes chooses the number of steps; drop it, or drop --steps and --smoke")
    try:
        from essm_train import bytes as task
    except ModuleNotFoundError as error:
        raise UnavailableError(f"training needs {error.name}: pip install 'essm-deploy[train]'") from error
    from essm_train.settings import ByteSettings, load_recipe

    settings = task.with_steps(load_recipe(ByteSettings, "bytes", config).with_train(seed=seed), steps)
    settings = task.smoke(settings) if smoke else settings
    options = (("--config", config and config.name), ("--seed", seed), ("--steps", steps))
    command = shlex.join([*_words("bytes --data FILE", options), *["--smoke"] * smoke])
    request = task.Request(data, output, task.Provenance(source, command), minutes, resume)
    task.train_bytes(request, settings, _device(device))
    click.echo(output)


def _device(name: str | None) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("--device cuda: torch sees no NVIDIA GPU here; use --device cpu")
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def _command(config: Path | None, seed: int | None, epochs: int | None, smoke: bool) -> str:
    """The command for the model card: what decides the result, without the paths of this machine."""
    options = (("--config", config and config.name), ("--seed", seed), ("--epochs", epochs))
    return shlex.join(_words("keywords --data-dir speech_commands", options) + ["--smoke"] * smoke)


def _words(task: str, options: Iterable[tuple[str, object]]) -> list[str]:
    """The task with its data, the output, and those options that were given."""
    words = ["essm-train", *task.split(), "-o", "CHECKPOINT"]
    for option, value in options:
        words += [option, str(value)] if value is not None else []
    return words


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
    except Exception as error:
        traceback.print_exc()
        return _fail(f"internal error ({type(error).__name__}); this is a bug in essm-train, please report it", 4)


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code
