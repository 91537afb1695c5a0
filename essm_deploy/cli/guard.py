"""Errors become one line and an exit code; commands are imported on demand."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from typing import Any

import click

from essm_deploy.errors import EssmError, UnavailableError

INTERRUPTED = 130
_COMPILER = ("scipy", "onnx", "ml_dtypes", "safetensors", "pydantic", "platformdirs")


class LazyGroup(click.Group):
    """A group whose commands are "module:attribute" strings until one is used."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In pipeline order, not by alphabet."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help comes from the table: it must work where the compiler is not installed."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._lazy.items()])


def require_compiler() -> None:
    """UnavailableError with the pip line unless everything that building needs is installed."""
    missing = [name for name in _COMPILER if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"building needs {', '.join(missing)}, not installed here: pip install 'essm-deploy[compiler]'")


def guarded(command: click.Command, program: str) -> int:
    """Run a command line and return its exit code; an error is one line on stderr."""
    try:
        result = command.main(prog_name=program, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except EssmError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        hint = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(error.format_message() + hint, error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        said = str(error.__cause__ or error)  # click wraps it
        return _fail(f"interrupted; {said}" if said else "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our stdout went away; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk or a missing permission is not a bug
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}; nothing was left half-written", 4)
    except Exception as error:
        traceback.print_exc()
        return _fail(f"internal error ({type(error).__name__}); this is a bug in {program}, please report it", 4)


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return code
