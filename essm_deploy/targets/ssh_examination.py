"""What a device over ssh has and lacks, for `doctor`: nothing is sent there but questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from essm_deploy.errors import EssmError
from essm_deploy.runtime import cuda, host
from essm_deploy.targets.check import Check
from essm_deploy.targets.description import Reach, Target
from essm_deploy.targets.ssh_connection import Connection
from essm_deploy.targets.ssh_packages import package_checks
from essm_deploy.targets.ssh_store import DeviceStore
from essm_deploy.units import format_bytes

_TENSORRT = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_ENOUGH_BYTES = 256 << 20
_CLEAN_SECONDS = 300.0


def examine_ssh(target: Target) -> list[Check]:
    """Checks in the order in which they depend on each other; after one that ends the examination there are no more."""
    try:
        with _store(target.reach) as store:
            return [Check("ssh", f"{target.reach.host} accepts us"), *_look(store, target)]
    except EssmError as error:
        return [Check("ssh", "not usable", str(error))]


def clean_ssh(reach: Reach) -> int:
    """Remove our files from the device; returns how many bytes they were. Raises what a launcher raises."""
    with _store(reach) as store:
        return int(store.ask("clean", _CLEAN_SECONDS, directory=reach.directory).get("freed", 0))


@contextmanager
def _store(reach: Reach) -> Iterator[DeviceStore]:
    store = DeviceStore(Connection(reach), lambda line: None)
    try:
        yield store
    finally:
        store.close()


def _look(store: DeviceStore, target: Target) -> list[Check]:
    greeting = store.greeting
    sources = {module.__name__.rpartition(".")[2]: Path(str(module.__file__)).read_text("utf-8") for module in (host, cuda)}
    facts = store.ask("examine", directory=target.reach.directory, sources=sources)
    optional = [_TENSORRT[name] for name in target.backends if name in _TENSORRT]
    return [
        Check("python", f"{greeting.get('python')} at {greeting.get('executable')}"),
        *package_checks(store, optional),
        *_machine(facts),
        _gpu(facts, target),
        _disk(facts),
    ]


def _machine(facts: dict[str, Any]) -> list[Check]:
    machine, memory = facts.get("machine", {}), facts.get("memory", {})
    cores = f"{machine.get('physical_cores')} physical cores, {machine.get('logical_cpus')} logical"
    governor = machine.get("governor") or "not shown by the system"
    total, available = (format_bytes(memory.get(key)) for key in ("total_bytes", "available_bytes"))
    return [
        Check("system", f"{machine.get('system')}, {machine.get('machine')}, {facts.get('libc') or 'unknown libc'}"),
        Check("processor", f"{machine.get('cpu')}, {cores}"),
        Check("governor", str(governor)),
        Check("memory", f"{total}, {available} available"),
    ]


def _gpu(facts: dict[str, Any], target: Target) -> Check:
    found, wanted = str(facts.get("gpus")), target.compute_capability
    if wanted is None or f"compute capability {wanted}" in found:
        return Check("gpu", found)
    return Check("gpu", found, f"expected compute capability {wanted}: install NVIDIA's driver there, or name another target")


def _disk(facts: dict[str, Any]) -> Check:
    free, ours, directory = facts.get("disk_free_bytes"), facts.get("ours_bytes"), facts.get("directory")
    found = f"{format_bytes(free)} free, {format_bytes(ours)} ours, in {directory}"
    if facts.get("problem"):
        return Check("disk", str(facts["problem"]), "set `directory` under [reach] to one that can be ours")
    if isinstance(free, int) and free < _ENOUGH_BYTES:
        fix = f"free {format_bytes(_ENOUGH_BYTES)}, or set `directory` under [reach] to another disk"
        return Check("disk", found, fix)
    return Check("disk", found)
