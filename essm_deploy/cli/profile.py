"""`essm-deploy profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.compiling import compiling_options, exit_code, make_request, print_candidates, print_choice
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import Progress, print_json


@click.command()
@click.argument("checkpoint", type=EXISTING, required=False)
@compiling_options
@FORMAT
def profile(checkpoint: Path | None, output_format: str, quiet: bool, **options: Any) -> int:
    """Measure the budgets of CHECKPOINT on a device; without limits, all trained ones.

    Every sample is in the JSON document and in the journal that it names.
    """
    require_compiler()
    from essm_deploy import compile

    limited = options["max_latency"] is not None or options["max_memory"] is not None
    request = make_request(checkpoint, **{**options, "all_k": options["all_k"] or not limited})
    document = compile.profile(request, Progress(quiet))
    if output_format == "json":
        print_json(document)
    else:
        print_candidates(document)
        if limited:
            print_choice(document)
        click.echo(f"samples: {document['observations']}")
    return exit_code(document)
