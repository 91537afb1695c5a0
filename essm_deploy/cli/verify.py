"""`essm-deploy verify`."""

from __future__ import annotations

from pathlib import Path

import click

from essm_deploy.bundle.verify import verify_bundle
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import print_json


@click.command()
@click.argument("bundle", type=EXISTING)
@FORMAT
def verify(bundle: Path, output_format: str) -> None:
    """Check every file of BUNDLE against its hash and replay the test vectors through every engine.

    Exit code 1 if a byte was changed or an engine is off by more than the bound.
    """
    manifest, checks = verify_bundle(bundle)
    if output_format == "json":
        engines = [{"engine": c.engine, "budget": c.budget, "max_rel_error": c.max_rel_error, "bound": c.bound} for c in checks]
        print_json({"schema_version": "1.0", "status": "ok", "files": len(manifest.files), "engines": engines})
        return
    click.echo(f"{bundle}: {len(manifest.files)} files as written")
    for check in checks:
        error = f"{check.max_rel_error:.1e} from the float64 reference (bound {check.bound:.0e})"
        click.echo(f"  {check.engine}  {error}")
