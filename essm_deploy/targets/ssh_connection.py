"""One connection to a device through the system's OpenSSH, shared by all sessions: the user's configuration, agent and
known hosts hold, and the host key is checked as they say.

The first session carries the others: they reach it through a socket in a private temporary directory. It ends with us, by
`close` or because we are gone: each session ends when its stdin does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import weakref
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from essm_deploy.errors import EssmError, UnavailableError
from essm_deploy.files import staging
from essm_deploy.targets.description import Reach
from essm_deploy.targets.ssh_errors import SSH_FAILED, lost

_LONGEST_SOCKET = 80  # a socket's path has at most 104 bytes, and ssh appends up to 17 while it makes one
_OPTIONS = {
    "BatchMode": "yes",  # never a question: there is nobody to answer
    "LogLevel": "ERROR",
    "RequestTTY": "no",
    "RemoteCommand": "none",  # the rest is what a user's configuration may ask for in a session of their own
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "ServerAliveInterval": "10",  # a dead connection is noticed after half a minute
    "ServerAliveCountMax": "3",
}
_GRACE_SECONDS = 5.0


class Session(subprocess.Popen[Any]):
    """The `ssh` whose pipes are those of a program on the device, which ends with them."""

    connection: Connection

    def cause(self) -> EssmError | None:
        """Why the session ended, if it was not the program's own doing."""
        return lost(self.connection.reach, self.connection.said()) if self.poll() == SSH_FAILED else None


class Connection:
    """A way to `reach`; nothing is started before `open`."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self._folder: Path | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def open(self, command: str) -> Session:
        """The first session, with pipes; what it and ssh write on stderr is for `said`."""
        self.close()
        with ExitStack() as stack:
            self._folder = stack.enter_context(_private_folder())
            with (self._folder / "errors").open("wb") as errors:
                first = self._ssh({"ControlMaster": "yes", "ControlPersist": "no"}, command, stderr=errors)
            self._finalizer = weakref.finalize(self, _tear_down, first, stack.pop_all())
        return first

    def session(self, command: str) -> Session:
        """A further session while the first one stands, with text pipes."""
        how: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace"}
        return self._ssh({"ControlMaster": "no"}, command, stderr=subprocess.PIPE, **how)

    def said(self) -> str:
        """What came on the first session's stderr."""
        with contextlib.suppress(OSError):
            if self._folder is not None:
                return (self._folder / "errors").read_text(encoding="utf-8", errors="replace")
        return ""

    def close(self) -> None:
        """End the connection and every session over it, and remove the socket."""
        if self._finalizer is not None:
            self._finalizer()
        self._folder = self._finalizer = None

    def _ssh(self, more: dict[str, str], command: str, **streams: Any) -> Session:
        assert self._folder is not None
        options = {
            **_OPTIONS,
            "ConnectTimeout": str(self.reach.connect_timeout_s),
            **more,
            "ControlPath": str(self._folder / "s"),
        }
        port = ["-p", str(self.reach.port)] if self.reach.port is not None else []
        words = [*(f"-o{name}={value}" for name, value in options.items()), *port, "--", str(self.reach.host), command]
        session = _popen(["ssh", *words], **streams)
        session.connection = self
        return session


def remote_command(python: str, *words: str) -> str:
    """`exec PYTHON WORDS...` for a login shell of any kind: every word is quoted, and `~/` is the home there."""
    program = f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
    return " ".join(["exec", program, *map(shlex.quote, words)])


def _popen(command: list[str], **streams: Any) -> Session:
    pipe = subprocess.PIPE
    try:
        # In a session of its own, for a Ctrl-C at the terminal is ours to handle.
        return Session(command, stdin=pipe, stdout=pipe, start_new_session=True, **streams)
    except OSError as error:
        raise UnavailableError(f"ssh cannot be started ({error.strerror}): install OpenSSH's client, openssh-client") from None


def _private_folder() -> AbstractContextManager[Path]:
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _LONGEST_SOCKET - len("/essm-deploy-0123456789abcdef/s"):
        folder = "/tmp"
    return staging(Path(folder))


def _tear_down(first: Session, folder: ExitStack) -> None:
    """Runs at the end of the program at the latest."""
    for pipe in (first.stdin, first.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    first.terminate()
    try:
        first.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()
    folder.close()
