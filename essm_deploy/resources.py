"""Where the data folders are: inside an installed wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from essm_deploy.errors import UnavailableError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"targets": "targets", "budgets": "profiles/budgets", "checkpoints": "examples/checkpoints"}


def data_folder(name: str) -> Path:
    """The folder of `targets`, `budgets` or `checkpoints`; UnavailableError if the installation lost it."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / _CHECKOUT[name]):
        if folder.is_dir():
            return folder
    raise UnavailableError(f"{_PACKAGE / '_data' / name}: missing from the installation; install essm-deploy again")
