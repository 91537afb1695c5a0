"""What went wrong with ssh, in one line that says what to do: OpenSSH's own words are read, which no locale translates."""

from __future__ import annotations

import re

from essm_deploy.errors import ConnectionLost, UnavailableError
from essm_deploy.targets.description import Reach

SSH_FAILED = 255
"""The status of an `ssh` that failed itself; otherwise it is that of the command there."""

_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"Could not resolve hostname",
        "no such host is known: check `host` under [reach], or give it an address in your ssh configuration",
    ),
    (r"Connection refused", "nothing listens for ssh there: start sshd on the device, or check `port` under [reach]"),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "the host does not answer: check that it is on, in reach of this network, and that `host` is right",
    ),
    (
        r"IDENTIFICATION HAS CHANGED",
        "its host key is not the one that you know it by: if the device was set up anew, `ssh-keygen -R {name}` forgets the "
        "old key, and `ssh {words}` shows the new one to compare; otherwise somebody else answers in its place",
    ),
    (
        r"Host key verification failed|host key is known for|[Nn]o matching host key fingerprint",
        "its host key is not known here: run `ssh {words}` once, compare the fingerprint, and say yes",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it refuses our key: `ssh-copy-id {words}` brings it there; `ssh-add` opens one that has a passphrase; a password is "
        "never asked for",
    ),
    (
        r"kex_exchange_identification|banner exchange|Connection (closed|reset)",
        "what answers ends the connection before a greeting: is that port sshd's?",
    ),
)


def ssh_words(reach: Reach) -> str:
    """What a person types after `ssh` to get to the device."""
    port = f"-p {reach.port} " if reach.port is not None else ""
    return f"{port}{reach.host}"


def refusal(reach: Reach, said: str) -> UnavailableError:
    """The error for a connection that could not be made; `said` is ssh's stderr."""
    name = (reach.host or "").rpartition("@")[2]
    if reach.port is not None:
        name = f"'[{name}]:{reach.port}'"
    for pattern, advice in _CAUSES:
        if re.search(pattern, said):
            return UnavailableError(f"ssh {ssh_words(reach)}: {advice.format(name=name, words=ssh_words(reach))}")
    return UnavailableError(f"ssh {ssh_words(reach)} failed: {last_line(said)}; try it by hand")


def loss(reach: Reach, said: str) -> str:
    """Half a sentence about a connection that was there and is gone; `said` is ssh's stderr."""
    return f"the connection to {reach.host} was lost" + (f" ({last_line(said).rstrip('.')})" if said.strip() else "")


def lost(reach: Reach, said: str) -> ConnectionLost:
    """The error that says so."""
    return ConnectionLost(
        f"{loss(reach, said)}: what was measured is kept, and the same command resumes when the device is back"
    )


def interpreter_refusal(reach: Reach, status: int | None, said: str) -> UnavailableError | None:
    """Why the interpreter on the device did not run our program; None if it did, or if it was ssh that failed."""
    where = f"{reach.host}: {reach.python!r}"
    if status is None or status <= 0 or status == SSH_FAILED:
        return None
    if status == 127 or re.search(r"not found|No such file", said):
        return UnavailableError(
            f"{where} is not there: install Python 3.10 or newer, or set `python` under [reach] to its path"
        )
    if status == 126:
        return UnavailableError(f"{where} cannot be executed: set `python` under [reach] to the path of a Python interpreter")
    old = re.search(r"needs Python 3\.10, this is ([0-9.]+)", said)
    if old or "Unknown option: -I" in said:
        version = old[1] if old else "2"
        return UnavailableError(
            f"{where} is Python {version}, expected 3.10 or newer: set `python` under [reach] to a newer one"
        )
    return UnavailableError(f"{where} ends with status {status}: {last_line(said)}")


def last_line(said: str) -> str:
    """The last line that is not empty, without control characters, shortened."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else "?" for c in lines[-1])[:300] if lines else "nothing was said"
