"""One build: parse, prove, compile, and keep what TensorRT said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from essm_deploy.backends.tensorrt.cache import Entry
from essm_deploy.backends.tensorrt.flavours import Flavour, tag
from essm_deploy.backends.tensorrt.inspector import listed_layers, prove_layers
from essm_deploy.backends.tensorrt.island import prove_island
from essm_deploy.backends.tensorrt.network import (
    MAX_BATCH,
    builder_config,
    free_batch,
    is_strongly_typed,
    parse_graph,
    strongly_typed_network,
)
from essm_deploy.errors import BuildError, VerificationError
from essm_deploy.files import disk_errors
from essm_deploy.runtime.cuda import describe_devices
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.tensorrt_log import TensorRtLog, captured

NOT_YET = "not yet verified"
"""What a manifest says of an engine that no device has run, and that no inspector has seen."""

_MEMORY = {"activation_bytes": "Total Activation Memory:", "weight_bytes": "Total Weights Memory:"}


@dataclass(frozen=True)
class TensorRtBackend:
    """Builds engines for the compute capabilities; several of them in one engine is what the rtx flavour alone can do."""

    flavour: Flavour
    capabilities: tuple[str, ...]
    cached: bool = True

    def anew(self) -> TensorRtBackend:
        """One that builds every engine itself; what it builds goes to the cache all the same."""
        return replace(self, cached=False)

    @property
    def name(self) -> str:
        """As targets and manifests call it."""
        return self.flavour.name

    def missing(self) -> str | None:
        """What has to be installed, or where one has to be, or None."""
        return self.flavour.missing(self.capabilities)

    def requirements(self) -> dict[str, Any]:
        """An engine is read by the version that wrote it, on the compute capabilities that it was written for."""
        return {self.flavour.module: f"=={self.flavour.version}", "compute_capability": list(self.capabilities)}

    def build(self, root: Path, engine: Engine) -> Engine:
        """`k8-sequence.sm86.engine` and its builder's `.log` in `root`, from the graph in the engine's files.

        The graph stays: it becomes the engine's `graph`. What was built before comes from the cache. Raises BuildError; the log
        is written even then.
        """
        stem = f"{engine.id}.{tag(self.capabilities)}"
        output, log = root / f"{stem}.engine", root / f"{stem}.log"
        with disk_errors(output):
            entry = Entry.of([root / name for name in engine.files], **self._conditions())
            proof = entry.fetch(output, log) if self.cached else None
            if proof is None:
                proof = self._logged(root / engine.files[0], output, log)
                entry.keep(output, log, proof)
        return replace(
            engine,
            backend=self.name,
            files=(f"{stem}.engine", f"{stem}.log"),
            graph=engine.files,
            requires=self.requirements(),
            proof={**proof, "log": f"{stem}.log", "verified_on_device": NOT_YET, "inspected": NOT_YET},
        )

    def _conditions(self) -> dict[str, Any]:
        """What an engine depends on beside its graph; one that was chosen by running it, on the machine too."""
        here = describe_devices() if self.flavour.needs_device else None
        return {"backend": self.name, "requires": self.requirements(), "max_batch": MAX_BATCH, "here": here}

    def _logged(self, graph: Path, output: Path, path: Path) -> dict[str, Any]:
        trt = self.flavour.load()
        with captured(trt) as (logger, log):
            try:
                return self._compile(trt, logger, log, graph, output)
            finally:
                log.write(path)

    def _compile(self, trt: Any, logger: Any, log: TensorRtLog, graph: Path, output: Path) -> dict[str, Any]:
        builder = trt.Builder(logger)
        network = strongly_typed_network(trt, builder)
        parser = parse_graph(trt, network, logger, graph)
        island = prove_island(graph, network)
        if not is_strongly_typed(trt, network):
            raise BuildError(f"{graph.name}: the network is not strongly typed, so its precision is not that of the graph")
        config = builder_config(trt, builder)
        self.flavour.configure(trt, config, self.capabilities)
        batch = free_batch(builder, network, config)
        plan = builder.build_serialized_network(network, config)
        del parser  # the network reads its weights until here
        if plan is None:
            raise BuildError(f"{graph.name}: TensorRT {trt.__version__} cannot build the engine: {log.problem()}")
        with output.open("wb") as file:
            file.write(plan)
        return {
            "strongly_typed": True,
            "tf32": bool(config.get_flag(trt.BuilderFlag.TF32)),
            "island": island.to_json(),
            "compiled": _compiled(graph, log),
            "batch": batch and list(batch),
            **{name: log.number(label) for name, label in _MEMORY.items()},
        }


def _compiled(graph: Path, log: TensorRtLog) -> dict[str, Any] | None:
    """The proof for the layers that the builder lists when it has finished; None if it lists none. BuildError."""
    layers = listed_layers(log.line("Layers: Name: "))
    if not layers:
        return None
    try:
        return prove_layers(graph, layers, graph.name).to_json()
    except VerificationError as error:
        raise BuildError(str(error)) from None
