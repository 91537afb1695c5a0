"""`essm-deploy doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from typing import Any

import click
import numpy
import onnxruntime

from essm_deploy import __version__
from essm_deploy.cli.options import FORMAT
from essm_deploy.cli.output import print_json, print_pairs
from essm_deploy.runtime import host
from essm_deploy.runtime.cuda import describe_devices
from essm_deploy.units import format_bytes

EXTRAS = {
    "compiler": ("scipy", "onnx", "safetensors", "pydantic", "platformdirs"),
    "train": ("torch", "flint"),
    "audio": ("soundfile",),
    "tensorrt-rtx": ("tensorrt_rtx", "cuda"),
    "tensorrt": ("tensorrt", "cuda"),
}
_DISTRIBUTIONS = {"flint": "python-flint", "cuda": "cuda-python"}


@click.command()
@click.option("--target", default=None, help="Look at this target instead: a name from `essm-deploy targets`, or a .toml file.")
@click.option("--clean", is_flag=True, help="Remove our files from the device that --target reaches over ssh.")
@FORMAT
def doctor(target: str | None, clean: bool, output_format: str) -> int | None:
    """Report versions, execution providers, cores, governor, free memory, and which extras are missing.

    With --target: what that device has and lacks, each thing with the command that brings it; exit 3 if something is missing.
    """
    if target is not None:
        from essm_deploy.cli.doctor_target import clean_target, doctor_target

        return clean_target(target, output_format) if clean else doctor_target(target, output_format)
    if clean:
        raise click.UsageError("--clean needs --target")
    report = examine()
    if output_format == "json":
        print_json(report)
    else:
        _print(report)
    return None


def examine() -> dict[str, Any]:
    """The report; what cannot be read is None."""
    return {
        "schema_version": "1.0",
        "versions": {
            "essm_deploy": __version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
        "providers": onnxruntime.get_available_providers(),
        "gpus": describe_devices(),
        "machine": host.describe(),
        "memory": host.memory(),
        "extras": {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
    }


def _version(module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    return importlib.metadata.version(_DISTRIBUTIONS.get(module, module))


def _print(report: dict[str, Any]) -> None:
    machine, memory = report["machine"], report["memory"]
    print_pairs(
        [
            *report["versions"].items(),
            ("providers", ", ".join(report["providers"])),
            ("gpus", report["gpus"]),
            *[(name, "not shown by the system" if v is None else str(v)) for name, v in machine.items()],
            ("memory", f"{format_bytes(memory['total_bytes'])}, {format_bytes(memory['available_bytes'])} available"),
        ],
        indent=0,
    )
    for extra, modules in report["extras"].items():
        missing = [name for name, version in modules.items() if version is None]
        state = f"missing {', '.join(missing)}: pip install 'essm-deploy[{extra}]'" if missing else "complete"
        click.echo(f"extra {extra}: {state}")
