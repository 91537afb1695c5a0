"""The part of this package that a device needs to run and measure engines: pushed there, nothing of ours is installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PARTS = ("__init__.py", "atomic.py", "errors.py", "units.py", "frontend", "runtime")
"""What `runtime` may import. The rest of the package stays here: it needs the compiler's libraries."""


def runner_files() -> dict[str, Path]:
    """The modules of the worker by their names below the directory that it is started in."""
    found: list[Path] = []
    for part in (_PACKAGE / name for name in _PARTS):
        found += [part] if part.is_file() else sorted(part.rglob("*.py"))
    return {path.relative_to(_PACKAGE.parent).as_posix(): path for path in found}
