"""How a worker is started on a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from essm_deploy.runtime.cuda import find_device
from essm_deploy.targets.chromium import ChromiumLauncher
from essm_deploy.targets.description import Target
from essm_deploy.targets.local import LocalLauncher
from essm_deploy.targets.node import NodeLauncher
from essm_deploy.targets.ssh import SshLauncher

AnyLauncher: TypeAlias = LocalLauncher | SshLauncher | NodeLauncher | ChromiumLauncher


def _silent(line: str) -> None:
    pass


def launcher_for(target: Target, progress: Callable[[str], None] = _silent) -> AnyLauncher:
    """What starts a worker on the target; nothing is connected or started yet. `progress` hears of what takes time.

    UnavailableError where this machine lacks what starts it.
    """
    if target.reach.via == "ssh":
        return SshLauncher(target.reach, progress)
    if target.reach.via == "node":
        return NodeLauncher(target.reach.node_modules).checked()
    if target.reach.via == "chromium":
        return ChromiumLauncher(target.reach.browser, target.reach.node_modules).checked()
    return LocalLauncher()


def device_here(target: Target) -> bool:
    """Whether what is built for the target can be run, and so measured: here, or where its worker runs."""
    if target.reach.via != "local" or target.kind == "cpu":
        return True
    return target.compute_capability is not None and find_device((target.compute_capability,)) is not None
