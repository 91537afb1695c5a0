"""What `inspect --support` shows: what each backend takes of the graphs that are there, or that would be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from essm_deploy.backends.base import GraphsOnly
from essm_deploy.backends.emit import prepare
from essm_deploy.backends.support import graph_support, graphs_below, support_json
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.files import staging


def describe_support(path: Path) -> dict[str, Any]:
    """Of every graph of a bundle, of one ONNX file, or of a checkpoint's smallest budget: counts by backend, a row a node."""
    with staging() as root:
        where = path if any(graphs_below(path)) else _smallest_graphs(open_checkpoint(path), root)
        graphs = [{"graph": graph.name, **support_json(graph_support(graph))} for graph in graphs_below(where)]
    return {"kind": "support", "schema_version": "1.0", "graphs": graphs}


def _smallest_graphs(checkpoint: Checkpoint, root: Path) -> Path:
    budget = min(family_of(checkpoint).config(checkpoint).budgets)
    prepare(root, checkpoint, [budget], 1, GraphsOnly("any")).bundle([budget])
    return root
