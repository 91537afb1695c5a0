"""What a backend offers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from essm_deploy.runtime.manifest import Engine


class Backend(Protocol):
    """Turns a checked ONNX graph into what its runtime opens."""

    @property
    def name(self) -> str:
        """As targets and manifests call it."""
        ...

    def missing(self) -> str | None:
        """What has to be installed, or None."""
        ...

    def requirements(self) -> dict[str, Any]:
        """What the runtime must have to run the engines, for the manifest."""
        ...

    def build(self, root: Path, engine: Engine) -> Engine:
        """Build the engine in `root` from the graph in its files; returns it with what came to be. BuildError."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A backend that keeps what it built, for the next time that the same is asked for."""

    def anew(self) -> Backend:
        """The same backend, looking nothing up."""
        ...


def anew(backend: Backend) -> Backend:
    """A backend whose engines are built and not looked up: two builds of one graph may not be equally fast."""
    return backend.anew() if isinstance(backend, Keeping) else backend


@dataclass(frozen=True)
class GraphsOnly:
    """Leaves every graph as it is: for those who want to look at what a backend of that name would be given."""

    name: str

    def missing(self) -> str | None:
        """Never anything."""
        return None

    def requirements(self) -> dict[str, Any]:
        """None: nobody runs it."""
        return {}

    def build(self, root: Path, engine: Engine) -> Engine:
        """The engine as it came."""
        return engine
