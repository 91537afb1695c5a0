"""The record of a calibration: `calibration.json` beside a bundle's manifest, which names the engine that this device affords.

It belongs to one device, one set of versions and one bundle; elsewhere it is not believed. It can only choose between engines
that the manifest lists and whose hashes are checked, so that a record which somebody else wrote does no more harm than another
budget. A record that cannot be read is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from essm_deploy import __version__
from essm_deploy.atomic import whole_file
from essm_deploy.errors import BundleError, IntegrityError
from essm_deploy.runtime import host
from essm_deploy.runtime.files import resolve_file
from essm_deploy.runtime.manifest import MANIFEST_NAME, Engine
from essm_deploy.runtime.requirements import TENSORRT, required_device, tensorrt_module
from essm_deploy.runtime.strict import JsonObject, parse_json

RECORD = "calibration.json"
SCHEMA_VERSION = "1.0"
STATUSES = ("confirmed", "moved", "nothing_fits", "inconclusive")
_MOST_BYTES = 1 << 20


def key_of(root: Path, engine: Engine, threads: int | None, settings: JsonObject) -> JsonObject:
    """What a record depends on: the bundle's content, the device, the versions, and how it was measured."""
    return {
        "content": hashlib.sha256(resolve_file(root, MANIFEST_NAME).read_bytes()).hexdigest(),
        "device": _device(engine),
        "versions": _versions(engine),
        "threads": threads,
        "execution": engine.execution,
        "settings": settings,
    }


def read_record(root: Path, key: JsonObject, choices: dict[str, Engine]) -> JsonObject | None:
    """The record at `root` if it was made under `key` and names one of the engines `choices` (by id); None otherwise."""
    try:
        with resolve_file(root, RECORD).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        record = parse_json(content.decode("utf-8"), RECORD) if len(content) <= _MOST_BYTES else None
    except (OSError, UnicodeDecodeError, BundleError, IntegrityError):
        return None
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION or record.get("key") != key:
        return None
    sound = record.get("default") in choices and record.get("status") in STATUSES and record.get("basis") == "measured"
    return record if sound and isinstance(record.get("engines"), list) else None


def write_record(root: Path, record: JsonObject) -> bool:
    """Keep the record; False where the bundle lies on something that cannot be written, and the next load measures again."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **record}, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        with whole_file(root / RECORD) as file:
            file.write((text + "\n").encode())
    except OSError:
        return False
    return True


def _device(engine: Engine) -> JsonObject:
    if "compute_capability" in engine.requires:
        device = required_device(engine)
        found = {"name": device.name, "compute_capability": device.compute_capability, "driver": device.driver}
        return {**found, "memory_bytes": device.memory_bytes}
    return {name: value for name, value in host.describe().items() if name != "governor"}


def _versions(engine: Engine) -> dict[str, Any]:
    versions = {
        "essm_deploy": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    used = [name for name in TENSORRT if name in engine.requires]
    return versions | {name: str(tensorrt_module(engine.id, name).__version__) for name in used}
