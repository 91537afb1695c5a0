"""`essm-deploy targets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import FORMAT
from essm_deploy.cli.output import print_json, print_table
from essm_deploy.errors import UnavailableError

if TYPE_CHECKING:
    from essm_deploy.targets.description import Target


@click.command()
@FORMAT
def targets(output_format: str) -> None:
    """List the devices that can be compiled for, and whether each can be reached from here."""
    rows = _rows()
    if output_format == "json":
        print_json({"schema_version": "1.0", "targets": rows})
    else:
        columns = ("name", "kind", "backends", "description", "state")
        print_table(columns, [[", ".join(r[c]) if c == "backends" else str(r[c]) for c in columns] for r in rows])


def _rows() -> list[dict[str, Any]]:
    require_compiler()
    from essm_deploy.targets.description import find_target, known_targets

    return [_row(find_target(name)) for name in known_targets()]


def _row(target: Target) -> dict[str, Any]:
    from essm_deploy.backends import find_backend
    from essm_deploy.targets.reach import device_here, launcher_for

    state = "ready" if device_here(target) else "ready to build; the device is not here, so figures are estimated"
    try:
        find_backend(target)
        launcher_for(target)
    except UnavailableError as error:
        state = f"unavailable: {error}"
    shown = {"name": target.name, "kind": target.kind, "backends": target.backends}
    return {**shown, "description": target.description, "state": state}
