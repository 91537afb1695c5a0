"""The packages that a device must have: what is there, and the command that brings what is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from essm_deploy.targets.check import Check
from essm_deploy.targets.local import KEPT
from essm_deploy.targets.ssh_errors import last_line
from essm_deploy.targets.ssh_store import DeviceStore

NEEDED = {"numpy": (1, 26), "onnxruntime": (1, 20)}
"""The oldest versions that the package itself asks for."""

_OTHERWISE = "or set `python` under [reach] to an interpreter that has what is needed"
_SECONDS = 180.0  # the first import from a memory card


def package_checks(store: DeviceStore, optional: Sequence[str] = ()) -> list[Check]:
    """One check a package: those that are needed, and `optional` ones, which may be missing."""
    found = store.ask("packages", _SECONDS, keep=KEPT, modules=[*NEEDED, *optional])
    packages: dict[str, Any] = found.get("packages", {})
    problems: dict[str, Any] = found.get("problems", {})
    python = shlex.quote(str(store.greeting.get("executable")))
    missing = [name for name in NEEDED if not isinstance(packages.get(name), str)]
    bring = f"run `{python} -m pip install {' '.join(missing)}` there, {_OTHERWISE}"
    checks = [
        Check(name, f"broken ({last_line(str(problems[name]))})" if name in problems else "not installed", bring)
        if name in missing
        else _old_or_not(name, str(packages[name]), python)
        for name in NEEDED
    ]
    if "providers" in problems:
        checks.append(Check("providers", last_line(str(problems["providers"]))))
    return [*checks, *(Check(name, str(packages.get(name) or "not there")) for name in optional)]


def _old_or_not(name: str, version: str, python: str) -> Check:
    if _numbers(version) >= NEEDED[name]:
        return Check(name, version)
    oldest = ".".join(map(str, NEEDED[name]))
    return Check(name, version, f"expected {oldest} or newer: run `{python} -m pip install -U {name}` there, {_OTHERWISE}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
