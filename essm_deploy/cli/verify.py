"""`essm-deploy verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from essm_deploy.bundle.verify import verify_bundle
from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import Progress, print_json
from essm_deploy.errors import UsageError


@click.command()
@click.argument("bundle", type=EXISTING)
@click.option("--on-device", is_flag=True, help="Measure the budgets here too, and confirm or move the choice.")
@click.option(
    "--cuda-graph/--no-cuda-graph",
    default=None,
    help="With --on-device: how TensorRT engines are run from now on; default: as the manifest says, else without.",
)
@click.option("--engine", "inspect", is_flag=True, help="Prove fp32 from the layers of the TensorRT engines; takes the GPU.")
@click.option("--wait", is_flag=True, help="With --on-device: wait while another sweep measures on this machine.")
@FORMAT
def verify(bundle: Path, on_device: bool, cuda_graph: bool | None, inspect: bool, wait: bool, output_format: str) -> int:
    """Check every file of BUNDLE against its hash and replay the test vectors through every engine.

    Exit code 1 if a byte was changed or an engine is off by more than the bound. An engine that cannot run here is not yet
    verified, which is no failure; with --on-device or --engine it is one, with exit code 3. --on-device rewrites the manifest:
    measured figures take the place of estimated ones, and the largest budget that surely fits becomes the default (1: none
    does; 5: too close to call). --engine writes down there that the layers were read and what was found.
    """
    if on_device and inspect:
        raise UsageError("--on-device measures and --engine reads layers: run them one after the other")
    if cuda_graph is not None and not on_device:
        raise UsageError("--cuda-graph and --no-cuda-graph go with --on-device, which measures what they do")
    if on_device:
        return _verify_on_device(bundle, cuda_graph, wait, output_format)
    return _verify_layers(bundle, output_format) if inspect else _verify(bundle, output_format)


def _verify(bundle: Path, output_format: str) -> int:
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


def _verify_layers(bundle: Path, output_format: str) -> int:
    require_compiler()
    from essm_deploy.bundle.inspected import verify_inspected

    proofs = verify_inspected(bundle)
    if output_format == "json":
        engines = [{"engine": name, **proof.to_json()} for name, proof in proofs.items()]
        print_json({"schema_version": "1.0", "status": "proved", "engines": engines})
        return 0
    for name, proof in proofs.items():
        across = f", {proof.across} of them across its border" if proof.across else ""
        click.echo(f"{name}: {proof.layers} layers carry the spectral island{across}; {proof.tensors} tensors {proof.dtype}")
    return 0


def _verify_on_device(bundle: Path, cuda_graph: bool | None, wait: bool, output_format: str) -> int:
    require_compiler()
    from essm_deploy.bundle.on_device import verify_on_device
    from essm_deploy.profiling.locks import THIS_MACHINE, hold_devices
    from essm_deploy.profiling.measure import Settings
    from essm_deploy.targets.local import LocalLauncher

    progress = Progress(quiet=output_format == "json")
    with hold_devices([THIS_MACHINE], progress, wait=wait):
        document, checks = verify_on_device(bundle, LocalLauncher(), Settings(), progress, cuda_graph)
    if output_format == "json":
        print_json({**document, "engines": [asdict(check) for check in checks]})
    else:
        click.echo(f"{bundle}: {document['status']}, default {document['default']} (was {document['default_before']})")
        if document["message"]:
            click.echo(document["message"])
    return _EXIT_CODES[document["status"]]


_EXIT_CODES = {"confirmed": 0, "moved": 0, "nothing_fits": 1, "inconclusive": 5}
