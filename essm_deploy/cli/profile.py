"""`essm-deploy profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.answer import print_profiles
from essm_deploy.cli.compiling import compiling_options, exit_code, make_requests
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import Progress, print_json


@click.command()
@click.argument("checkpoint", type=EXISTING, required=False)
@compiling_options
@click.option(
    "--report",
    "reports",
    type=EXISTING,
    multiple=True,
    help="Also write a page (.html), Markdown (.md), a picture (.png) or the document without local paths (.json); repeatable.",
)
@FORMAT
def profile(checkpoint: Path | None, reports: tuple[Path, ...], output_format: str, quiet: bool, **options: Any) -> int:
    """Measure the budgets of CHECKPOINT on a device; without limits, all trained ones.

    Every sample is in the JSON document and in the journal that it names.
    """
    require_compiler()
    from essm_deploy import compile
    from essm_deploy.profiling.reporting.write import check_reports, write_reports

    check_reports(reports)
    requests, progress = make_requests(checkpoint, all_without_limits=True, **options), Progress(quiet)
    document = compile.profile(requests[0], progress) if len(requests) == 1 else compile.profile_all(requests, progress)
    if output_format == "json":
        print_json(document)
    else:
        print_profiles(document)
    write_reports(document, reports)
    return exit_code(document)
