"""`essm-deploy targets`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import FORMAT
from essm_deploy.cli.output import print_json, print_table
from essm_deploy.errors import UnavailableError

if TYPE_CHECKING:
    from essm_deploy.targets.description import Target


@click.command()
@click.argument("descriptions", metavar="[FILE.toml]...", nargs=-1)
@FORMAT
def targets(descriptions: tuple[str, ...], output_format: str) -> None:
    """List the devices that can be compiled for, those of your own FILEs among them, and whether each can be reached."""
    rows = _rows(descriptions)
    if output_format == "json":
        print_json({"schema_version": "1.0", "targets": rows})
    else:
        columns = ("name", "kind", "backends", "description", "state")
        print_table(columns, [[", ".join(r[c]) if c == "backends" else str(r[c]) for c in columns] for r in rows])


def _rows(descriptions: tuple[str, ...]) -> list[dict[str, Any]]:
    require_compiler()
    from essm_deploy.targets.description import find_target, known_targets

    return [_row(find_target(name), name) for name in (*known_targets(), *descriptions)]


def _row(target: Target, name: str) -> dict[str, Any]:
    from essm_deploy.backends import find_backend
    from essm_deploy.targets.reach import launcher_for

    try:
        find_backend(target)
        launcher_for(target)
        state = _state(target, name)
    except UnavailableError as error:
        state = f"unavailable: {error}"
    shown = {"name": target.name, "kind": target.kind, "backends": target.backends, "reach": target.reach.model_dump()}
    return {**shown, "description": target.description, "state": state}


def _state(target: Target, name: str) -> str:
    """A device over ssh is not asked: the list must not wait for one that is off."""
    from essm_deploy.targets.reach import device_here

    if target.reach.via == "ssh":
        return f"over ssh, {target.reach.host}; `essm-deploy doctor --target {shlex.quote(name)}` looks whether it is ready"
    return "ready" if device_here(target) else "ready to build; the device is not here, so figures are estimated"
