"""A device of our own: sshd on this machine's loopback for a second user with a second virtual environment.

    python tests/targets/loopback.py start FOLDER      as root, on Debian; prints what it could not do
    ESSM_SSH_LOOPBACK=FOLDER python -m pytest -m ssh
    python tests/targets/loopback.py stop FOLDER       removes the user, the server and the folder

Everything lies in FOLDER, a directory that every user can enter: the server's configuration and keys, the user's home, and a
program `bin/ssh` that is the system's ssh with a configuration of its own. The machine's ssh configuration is neither read nor
written. `bin/ssh` knows these hosts:

    device        the second user, with a key that it takes and a host key that is known
    wrong-key     with a key that it does not take        unknown-key    with a host key that nobody knows
    changed-key   with another host key than is known     refused        a port that nothing listens on
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_SMALL = "3m"
_PYTHON = "/usr/bin/python3"
_SSHD = "/usr/sbin/sshd"


@dataclass(frozen=True)
class Loopback:
    """What `start` has made."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def python(self) -> str:
        return str(self.home / "venv/bin/python")

    @property
    def small(self) -> Path | None:
        """A disk of three megabytes, where one could be mounted."""
        path = self.home / "small"
        return path if path.is_mount() else None

    @property
    def user(self) -> str:
        """Of a name that no other folder's user has."""
        return "essm-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.user).pw_uid

    def processes(self, word: str = "") -> list[int]:
        """The processes of the second user whose command line has `word` in it."""
        return [pid for pid, words in _processes(self.uid) if word in words]

    def sessions(self) -> list[int]:
        """The server's processes that hold the connections of the second user."""
        return [pid for pid, words in _processes(self.uid) if words.startswith("sshd")]


def start(folder: Path) -> None:
    """Raises CalledProcessError or OSError where this machine does not let us."""
    if os.getuid() != 0:
        raise OSError("only root can start sshd for a second user")
    _install()
    user = Loopback(folder).user
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _run("useradd", "--create-home", "--home-dir", str(folder / "home"), "--shell", "/bin/bash", "--password", "*", user)
    _environment(folder)
    _keys(folder)
    _serve(folder)
    with contextlib.suppress(subprocess.CalledProcessError):
        (folder / "home/small").mkdir()
        _run(
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={_SMALL},uid={Loopback(folder).uid},mode=700",
            "tmpfs",
            str(folder / "home/small"),
        )


def stop(folder: Path) -> None:
    """Undo `start`, as far as it came."""
    if (folder / "home/small").is_mount():
        _run("umount", "--lazy", str(folder / "home/small"))
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((folder / "sshd.pid").read_text()), signal.SIGTERM)
    with contextlib.suppress(KeyError):
        uid = Loopback(folder).uid
        deadline = time.monotonic() + 10
        while (found := [pid for pid, _ in _processes(uid)]) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        _run("userdel", Loopback(folder).user)
    shutil.rmtree(folder, ignore_errors=True)


def _install() -> None:
    if not Path(_SSHD).exists():
        # At runlevel 1 Debian's scripts start no service: ours is the only server.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "openssh-server", "openssh-client"]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def _environment(folder: Path) -> None:
    """The second environment is the system's Python, whatever runs this, with what a device needs and nothing else."""
    home = folder / "home"
    _run(_PYTHON, "-m", "venv", "--without-pip", str(home / "venv"))
    _run(_PYTHON, "-m", "venv", "--without-pip", str(home / "bare"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(home / "venv/bin/python")]
    _run(*pip, "install", "--no-compile", "numpy", "onnxruntime")
    _run("chown", "--recursive", Loopback(folder).user, str(home))


def _keys(folder: Path) -> None:
    for name in ("host_key", "other_host_key", "key", "wrong_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    (folder / "authorized_keys").write_bytes((folder / "key.pub").read_bytes())


def _serve(folder: Path) -> None:
    port, closed = _free_port(), _free_port()
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": folder / "sshd.pid",
        "AllowUsers": Loopback(folder).user,
        "StrictModes": "no",  # /tmp may be above the folder
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    _write_client(folder, port, closed)
    Path("/run/sshd").mkdir(exist_ok=True)  # which sshd insists on, and leaves empty
    _run(_SSHD, "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log"))
    _run(str(folder / "bin/ssh"), "-oBatchMode=yes", "device", "true")


def _write_client(folder: Path, port: int, closed: int) -> None:
    for name, key in (("known", "host_key"), ("changed", "other_host_key")):
        public = (folder / f"{key}.pub").read_text()
        (folder / name).write_text(f"[127.0.0.1]:{port} {public}")
    (folder / "unknown").touch()
    hosts = [("device", port, "key", "known"), ("wrong-key", port, "wrong_key", "known")]
    hosts += [
        ("unknown-key", port, "key", "unknown"),
        ("changed-key", port, "key", "changed"),
        ("refused", closed, "key", "known"),
    ]
    user = Loopback(folder).user
    blocks = [
        f"Host {name}\n  HostName 127.0.0.1\n  Port {to}\n  User {user}\n  IdentityFile {folder / key}\n  IdentitiesOnly yes\n"
        f"  IdentityAgent none\n  UserKnownHostsFile {folder / known}\n  GlobalKnownHostsFile /dev/null\n"
        for name, to, key, known in hosts
    ]
    (folder / "ssh_config").write_text("\n".join(blocks))
    (folder / "bin").mkdir()
    program = folder / "bin/ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F "{folder}/ssh_config" "$@"\n')
    program.chmod(0o755)


def _processes(uid: int) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def main() -> int:
    """`start` leaves nothing behind where it fails."""
    action, folder = sys.argv[1], Path(sys.argv[2]).absolute()
    if action == "stop":
        stop(folder)
        return 0
    try:
        start(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no device over ssh: {error}", file=sys.stderr)
        stop(folder)
        return 1
    print(json.dumps({"folder": str(folder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
