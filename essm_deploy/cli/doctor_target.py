"""`essm-deploy doctor --target`: what a target has and lacks, each thing that is missing with what brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.output import print_json, print_pairs
from essm_deploy.errors import EssmError, UnavailableError, UsageError
from essm_deploy.units import format_bytes

if TYPE_CHECKING:
    from essm_deploy.targets.check import Check
    from essm_deploy.targets.description import Target


def doctor_target(name: str, output_format: str) -> int:
    """Print the report; returns the exit code: 0 if a build can start, 3 if something is missing."""
    require_compiler()
    from essm_deploy.targets.description import find_target

    target = find_target(name)
    checks = [_builds(target), *_reached(target)]
    ready = all(check.fix is None for check in checks)
    if output_format == "json":
        print_json(_document(target, checks, ready))
    else:
        print_pairs([(check.what, check.found) for check in checks], indent=0)
        for check in checks:
            if check.fix is not None:
                click.echo(f"{check.what}: {check.fix}")
        click.echo(f"{target.name}: {'ready' if ready else 'not ready'}")
    return 0 if ready else UnavailableError.exit_code


def clean_target(name: str, output_format: str) -> int:
    """Remove our files from the device and say how many bytes they were; returns 0."""
    require_compiler()
    from essm_deploy.targets.description import find_target
    from essm_deploy.targets.ssh_examination import clean_ssh

    target = find_target(name)
    if target.reach.via != "ssh":
        raise UsageError(f"target {target.name!r} is not reached over ssh: there are no files of ours to remove")
    freed = clean_ssh(target.reach)
    if output_format == "json":
        print_json({"schema_version": "1.0", "target": target.name, "freed_bytes": freed})
    else:
        click.echo(f"{target.reach.host}: removed {target.reach.directory}, {format_bytes(freed)}")
    return 0


def _builds(target: Target) -> Check:
    from essm_deploy.backends import find_backend
    from essm_deploy.targets.check import Check

    try:
        return Check("backend", f"{find_backend(target).name} builds here")
    except EssmError as error:
        return Check("backend", "none builds here", str(error))


def _reached(target: Target) -> list[Check]:
    from essm_deploy.runtime.cuda import describe_devices
    from essm_deploy.targets.check import Check
    from essm_deploy.targets.reach import device_here, launcher_for
    from essm_deploy.targets.ssh_examination import examine_ssh

    if target.reach.via == "ssh":
        return examine_ssh(target)
    try:
        launcher_for(target)
    except EssmError as error:
        return [Check(target.reach.via, "cannot be started", str(error))]
    if device_here(target):
        return [Check(target.reach.via, "a worker can be started on this machine")]
    return [Check("device", f"not here ({describe_devices()}): budgets are chosen by estimate")]


def _document(target: Target, checks: list[Check], ready: bool) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "target": target.name,
        "reach": target.reach.model_dump(),
        "ready": ready,
        "checks": [{"what": c.what, "found": c.found, "ok": c.fix is None, "fix": c.fix} for c in checks],
    }
