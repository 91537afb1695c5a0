"""Data flows one way: a stage imports only stages to its left, and the leaves, which import no stage."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "essm_deploy"
LEAVES = ("atomic", "errors", "units", "files", "schema", "resources", "frontend", "runtime")
STAGES = ("checkpoint", "graph", "spectral", "families", "targets", "backends", "profiling", "bundle", "compile", "cli")
DEVICE = ("atomic", "errors", "units", "frontend", "runtime")
TORCH_FREE = [*PACKAGE.rglob("*.py")]


def imported(path: Path) -> set[str]:
    """The parts of essm_deploy that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "essm_deploy" else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("essm_deploy.") and name != "essm_deploy.__version__"}
    return found - {"__version__"}


def files_of(part: str) -> list[Path]:
    folder = PACKAGE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def test_every_part_of_the_package_has_its_place() -> None:
    parts = {p.stem for p in PACKAGE.iterdir() if (p.is_dir() and (p / "__init__.py").exists()) or p.suffix == ".py"}
    assert parts - {"__init__"} == {*LEAVES, *STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_what_is_left_of_it(stage: str) -> None:
    allowed = {*LEAVES, *STAGES[: STAGES.index(stage) + 1]}
    for path in files_of(stage):
        assert imported(path) <= allowed, path


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_no_stage(leaf: str) -> None:
    for path in files_of(leaf):
        assert not imported(path) & set(STAGES), path


@pytest.mark.parametrize("leaf", DEVICE)
def test_what_runs_on_a_device_imports_only_what_runs_on_a_device(leaf: str) -> None:
    for path in files_of(leaf):
        assert imported(path) <= set(DEVICE), path


@pytest.mark.parametrize("path", TORCH_FREE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_compiler_never_imports_torch_or_the_trainer(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"torch", "essm_train"}


def test_no_module_is_longer_than_it_may_be() -> None:
    modules = [*PACKAGE.rglob("*.py"), *(ROOT / "train").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert [p for p in modules if len(p.read_text().splitlines()) > 400] == []
