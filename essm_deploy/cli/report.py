"""`essm-deploy report`."""

from __future__ import annotations

from pathlib import Path

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING


@click.command()
@click.argument("document", type=EXISTING)
@click.option(
    "-o",
    "--output",
    "outputs",
    type=EXISTING,
    multiple=True,
    required=True,
    help="A .html, .md, .png or .json file; repeatable.",
)
def report(document: Path, outputs: tuple[Path, ...]) -> None:
    """Write DOCUMENT, what `profile` or `build` printed with --format json, as a page, as Markdown or as a picture.

    Nothing is measured. The suffix decides what is written.
    """
    require_compiler()
    from essm_deploy.profiling.reporting.reading import load
    from essm_deploy.profiling.reporting.write import write_reports

    write_reports(load(document), outputs, source=document)
    for path in outputs:
        click.echo(path)
