"""`essm-deploy inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from essm_deploy.cli.guard import require_compiler
from essm_deploy.cli.options import EXISTING, FORMAT
from essm_deploy.cli.output import print_json, print_pairs, print_table
from essm_deploy.runtime.manifest import MANIFEST_NAME, Manifest, read_manifest
from essm_deploy.units import format_bytes, format_ms


@click.command()
@click.argument("path", type=EXISTING)
@click.option("--support", is_flag=True, help="Which backends take each node of the graphs, and why not.")
@FORMAT
def inspect(path: Path, support: bool, output_format: str) -> None:
    """Show what is in PATH, a checkpoint or a bundle. Hashes are not checked: that is `verify`.

    With --support, PATH may also be an ONNX file; the graphs of a checkpoint are those of its smallest budget. Exit code 0 also
    where a backend lacks a node: that is an answer.
    """
    if support:
        _inspect_support(path, output_format)
    elif (path / MANIFEST_NAME).is_file():
        _inspect_bundle(path, output_format)
    else:
        _inspect_checkpoint(path, output_format)


def _inspect_support(path: Path, output_format: str) -> None:
    require_compiler()
    from essm_deploy.bundle.describe import describe_support

    document = describe_support(path)
    if output_format == "json":
        print_json(document)
        return
    for graph in document["graphs"]:
        backends = graph["backends"]
        click.echo(f"{graph['graph']}: " + ", ".join(f"{b} {v['supported']} of {v['nodes']}" for b, v in backends.items()))
        print_table(("node", "operator", *backends), [_support_row(node, backends) for node in graph["nodes"]])


def _support_row(node: dict[str, Any], backends: dict[str, Any]) -> list[str]:
    return [node["node"], node["operator"], *(node["reasons"].get(backend) or "yes" for backend in backends)]


def _inspect_bundle(path: Path, output_format: str) -> None:
    manifest = read_manifest(path)
    if output_format == "json":
        print_json({"kind": "bundle", **manifest.to_json()})
        return
    click.echo(f"{path}: bundle of {manifest.model.name} ({manifest.model.family}) for {manifest.target['name']}")
    size = sum((path / name).stat().st_size for name in manifest.files if (path / name).is_file())
    print_pairs([("task", manifest.model.task), ("default", manifest.default), ("size", format_bytes(size))])
    print_table(("engine", "budget", "kind", "backend", "precision", "p95", "basis"), _engine_rows(manifest))


def _engine_rows(manifest: Manifest) -> list[list[str]]:
    rows = []
    for e in manifest.engines:
        profile: dict[str, Any] = e.profile or {}
        p95 = (profile.get("latency_ms") or {}).get("p95")
        rows.append([e.id, e.budget, e.kind, e.backend, e.precision, format_ms(p95), str(profile.get("basis", "-"))])
    return rows


def _inspect_checkpoint(path: Path, output_format: str) -> None:
    require_compiler()
    from essm_deploy.compile import describe_checkpoint

    document = describe_checkpoint(path)
    if output_format == "json":
        print_json(document)
        return
    click.echo(f"{path}: {document['model_type']} checkpoint, k_max {document['k_max']}, length {document['seq_len']}")
    bank = document["bank"]
    print_pairs(
        [("task", document["task"]), ("bank", f"{bank['kind']} {bank['sha256'][:12]}"), ("hash", document["hash"][:12])]
    )
    metric = document["metric"] or "quality"
    rows = [
        [f"K={b['budget']}", f"{b['parameters']:,}", format_bytes(b["weight_bytes"]), _shown(b["quality"])]
        for b in document["budgets"]
    ]
    print_table(("budget", "parameters", "weights", metric), rows)


def _shown(quality: float | None) -> str:
    return "not measured" if quality is None else f"{quality:.4g}"
