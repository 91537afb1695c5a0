"""`essm-deploy build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.compiling import compiling_options, exit_code, make_request, print_choice
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import BUDGET_LIST, EXISTING, FORMAT, FRACTION
from essm_deploy.cli.output import Progress, print_json


@click.command()
@click.argument("checkpoint", type=EXISTING, required=False)
@compiling_options
@click.option("--min-quality", type=float, default=None, help="The least value of the model's own metric.")
@click.option("--min-retention", type=FRACTION, default=None, help="The least share of the full budget's quality, like 98%.")
@click.option("-o", "--output", type=EXISTING, default=None, help="Where the bundle goes; default: out/MODEL-TARGET.")
@click.option("--keep", type=BUDGET_LIST, default=(), help="Budgets to bundle as well, like 4,8: a stream can change to them.")
@click.option("--dry-run", is_flag=True, help="Check and plan, but measure and write nothing.")
@FORMAT
def build(checkpoint: Path | None, output: Path | None, dry_run: bool, output_format: str, quiet: bool, **options: Any) -> int:
    """Choose the largest budget of CHECKPOINT that fits a device, and bundle its engine.

    Without CHECKPOINT, the keyword spotter that ships with the package. Exit code 0: done; 1: nothing fits; 5: a larger
    budget lies too close to a limit to call, or the machine was too busy to tell (the bundle holds the largest that surely
    fits, or the smallest if none does).

    Where the target is a GPU that is not here, its engines are built and the choice rests on an estimate; nothing is measured.
    """
    require_compiler()
    from essm_deploy import compile

    request = make_request(checkpoint, **options)
    progress = Progress(quiet)
    if dry_run:
        print_json(compile.plan(request, progress))
        return 0
    where = output or Path("out") / f"{request.checkpoint.resolve().name}-{Path(request.target).stem}"
    document = compile.build(request, where, progress)
    if output_format == "json":
        print_json(document)
    else:
        print_choice(document)
    return exit_code(document)
