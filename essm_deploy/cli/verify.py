"""`essm-deploy verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from essm_deploy.bundle.verify import verify_bundle
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import Progress, print_json


@click.command()
@click.argument("bundle", type=EXISTING)
@click.option("--on-device", is_flag=True, help="Measure the budgets here too, and confirm or move the choice.")
@FORMAT
def verify(bundle: Path, on_device: bool, output_format: str) -> int:
    """Check every file of BUNDLE against its hash and replay the test vectors through every engine.

    Exit code 1 if a byte was changed or an engine is off by more than the bound. An engine that cannot run here is not yet
    verified, which is no failure; with --on-device it is one, with exit code 3. --on-device rewrites the manifest: measured
    figures take the place of estimated ones, and the largest budget that surely fits becomes the default (1: none does; 5: too
    close to call).
    """
    if on_device:
        return _verify_on_device(bundle, output_format)
    manifest, checks = verify_bundle(bundle)
    if output_format == "json":
        engines = [asdict(check) for check in checks]
        print_json({"schema_version": "1.0", "status": "ok", "files": len(manifest.files), "engines": engines})
        return 0
    click.echo(f"{bundle}: {len(manifest.files)} files as written")
    for check in checks:
        error = f"{check.max_rel_error:.1e} from the float64 reference (bound {check.bound:.0e})"
        only = "" if check.judged == "engine" else "; its graph alone: the engine cannot run here, it is not yet verified"
        click.echo(f"  {check.engine}  {error}{only}")
    return 0


def _verify_on_device(bundle: Path, output_format: str) -> int:
    require_compiler()
    from essm_deploy.bundle.on_device import verify_on_device
    from essm_deploy.profiling.measure import Settings
    from essm_deploy.targets.local import LocalLauncher

    document, checks = verify_on_device(bundle, LocalLauncher(), Settings(), Progress(quiet=output_format == "json"))
    if output_format == "json":
        print_json({**document, "engines": [asdict(check) for check in checks]})
    else:
        click.echo(f"{bundle}: {document['status']}, default {document['default']} (was {document['default_before']})")
        if document["message"]:
            click.echo(document["message"])
    return _EXIT_CODES[document["status"]]


_EXIT_CODES = {"confirmed": 0, "moved": 0, "nothing_fits": 1, "inconclusive": 5}
