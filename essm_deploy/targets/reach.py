"""How a worker is started on a target."""

from __future__ import annotations

from essm_deploy.errors import UnavailableError
from essm_deploy.runtime.cuda import find_device
from essm_deploy.targets.description import Target
from essm_deploy.targets.local import LocalLauncher


def launcher_for(target: Target) -> LocalLauncher:
    """What starts a worker on the target; UnavailableError says why it cannot be reached and what to do."""
    if target.reach.via == "local":
        return LocalLauncher()
    raise UnavailableError(
        f"target {target.name!r} is reached over ssh ({target.reach.host}), which this version cannot do yet; "
        "install essm-deploy on the device and build there with --target cpu"
    )


def device_here(target: Target) -> bool:
    """Whether what is built for the target can be run, and so measured, on this machine."""
    if target.kind == "cpu":
        return True
    return target.compute_capability is not None and find_device((target.compute_capability,)) is not None
