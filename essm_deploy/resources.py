"""What ships beside the code: inside an installed wheel, or in a checkout."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from essm_deploy.errors import UnavailableError, UsageError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"targets": "targets", "budgets": "profiles/budgets", "checkpoints": "examples/checkpoints"}


def data_folder(name: str) -> Path:
    """The folder of `targets`, `budgets` or `checkpoints`; UnavailableError if the installation lost it."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / _CHECKOUT[name]):
        if folder.is_dir():
            return folder
    raise UnavailableError(f"{_PACKAGE / '_data' / name}: missing from the installation; install essm-deploy again")


def shipped_toml(folder: str) -> dict[str, Path]:
    """Every .toml file of a data folder by name."""
    return {path.stem: path for path in sorted(data_folder(folder).glob("*.toml"))}


def find_toml(name: str, known: Mapping[str, Path], what: str, own: str, error: type[UsageError]) -> Path:
    """A file of `known` by name, or a user's own by its path, which ends in .toml.

    `error` says what was meant, or what is known; `what` such a file is, and what a user's `own` does, are parts of it.
    """
    if name.endswith(".toml"):
        return Path(name)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}."
        raise error(f"unknown {what} {name!r}; {hint} A path to a .toml file {own}")
    return known[name]
