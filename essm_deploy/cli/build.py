"""`essm-deploy build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.answer import print_answers
from essm_deploy.cli.compiling import compiling_options, exit_code, make_requests
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import BUDGET_LIST, EXISTING, FORMAT, FRACTION
from essm_deploy.cli.output import Progress, print_json


@click.command()
@click.argument("checkpoint", type=EXISTING, required=False)
@compiling_options
@click.option("--min-quality", type=float, default=None, help="The least value of the model's own metric.")
@click.option("--min-retention", type=FRACTION, default=None, help="The least share of the full budget's quality, like 98%.")
@click.option(
    "-o",
    "--output",
    type=EXISTING,
    default=None,
    help="Where the bundle goes; default: out/MODEL-TARGET. Of several targets or limits, the folder of their bundles, each "
    "TARGET[-LIMITS]; default: out/MODEL.",
)
@click.option("--keep", type=BUDGET_LIST, default=(), help="Budgets to bundle as well, like 4,8: a stream can change to them.")
@click.option("--dry-run", is_flag=True, help="Check and plan, but measure and write nothing.")
@FORMAT
def build(checkpoint: Path | None, output: Path | None, dry_run: bool, output_format: str, quiet: bool, **options: Any) -> int:
    """Choose the largest budget of CHECKPOINT that fits a device, and bundle its engine.

    Without CHECKPOINT, the keyword spotter that ships with the package. Exit code 0: done; 1: nothing fits; 5: a larger
    budget lies too close to a limit to call, or the machine was too busy to tell, or the chosen engine exceeded the limit when
    it was built anew (the bundle holds the largest that surely fits, or the smallest if none does). Of several targets or
    limits, the worst: 4, 3, 1, 5, 0 in this order.

    Where the target is a GPU that is not here, its engines are built and the choice rests on an estimate; nothing is measured.
    """
    require_compiler()
    from essm_deploy import compile

    requests, progress = make_requests(checkpoint, usual_rebuilds=1, **options), Progress(quiet)
    if dry_run:
        print_json(compile.plan(requests[0], progress) if len(requests) == 1 else compile.plan_all(requests, progress))
        return 0
    model = requests[0].checkpoint.resolve().name
    if len(requests) == 1:
        where = output or Path("out") / f"{model}-{Path(requests[0].target).stem}"
        document = compile.build(requests[0], where, progress)
    else:
        document = compile.build_all(requests, output or Path("out") / model, progress)
    if output_format == "json":
        print_json(document)
    else:
        print_answers(document)
    return exit_code(document)
