"""The manifest of a bundle: what was compiled, for which device, at which budgets, and the sha256 of every file.

    manifest.json
    ├── schema_version  "1.0"
    ├── model           {name, family, task, hash, id2label, frontend, metadata}
    ├── target          {name, ...}
    ├── overflow        window | restart | refuse: what happens past the trained length
    ├── limits          what the build was asked for
    ├── budgets         [{id, axes: {"k": 8}, order, quality}]
    ├── engines         [{id, budget, kind, chunk, backend, precision, files, requires, profile, inputs, outputs, stream,
    │                     graph, proof, execution}]
    ├── default         the engine that an app gets if it does not ask
    └── files           {path: sha256}

Engines are of kind "sequence" (the whole input at once), "stream" (`chunk` tokens a call, with a `stream` object: see
stream_info.py) or "anchor" (recomputes the state of stream engines). A newer minor version may add keys, which are
ignored; a newer major one is refused.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from essm_deploy.errors import BundleError
from essm_deploy.runtime.files import check_relative, resolve_file, verify_hashes
from essm_deploy.runtime.stream_info import OVERFLOWS, StreamInfo
from essm_deploy.runtime.strict import Fields, JsonObject, parse_json

SCHEMA_VERSION = "1.0"
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20

KINDS = ("sequence", "stream", "anchor")
BASES = ("measured", "estimated")
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")

_LATER = ("stream", "graph", "proof", "execution")  # keys that an engine's entry has only where it needs them
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TensorInfo:
    """One input or output: `shape` holds sizes, or names for what may vary; `maximum` bounds token ids and lengths."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    maximum: int | None = None

    @classmethod
    def from_json(cls, value: object, where: str, *, strict: bool = True) -> TensorInfo:
        fields = Fields(value, where, strict=strict)
        info = cls(
            name=fields.text("name"),
            dtype=fields.text("dtype", DTYPES),
            shape=_shape(fields.sequence("shape"), where),
            maximum=fields.integer("maximum", 0, optional=True),
        )
        fields.finish()
        return info


@dataclass(frozen=True)
class Budget:
    """One point of the elastic axes. `order` ascends with cost, whatever the axes are."""

    id: str
    axes: dict[str, int]
    order: int
    quality: JsonObject | None = None

    @classmethod
    def from_json(cls, value: object, where: str, *, strict: bool = True) -> Budget:
        fields = Fields(value, where, strict=strict)
        axes = _required(fields.mapping("axes"))
        for axis, size in axes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise fields.wrong(f"axes.{axis}", size, "a whole number of at least 1")
        budget = cls(fields.text("id"), axes, cast(int, fields.integer("order", 0)), fields.mapping("quality", optional=True))
        fields.finish()
        return budget


@dataclass(frozen=True)
class Engine:
    """One compiled graph. `files[0]` is what the backend opens; the others are what that file refers to.

    An engine that is no longer ONNX says what it was made of: `graph` is that graph and the files that it refers to, `proof` is
    what was proved when it was built. Both are empty where the graph itself is the engine. `execution` says how a GPU is to run
    it: {"cuda_graph": bool}, none if nobody has decided.
    """

    id: str
    budget: str
    kind: Literal["sequence", "stream", "anchor"]
    backend: str
    precision: str
    files: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    requires: JsonObject = field(default_factory=dict)
    chunk: int | None = None
    profile: JsonObject | None = None
    stream: StreamInfo | None = None
    graph: tuple[str, ...] = ()
    proof: JsonObject | None = None
    execution: JsonObject | None = None

    @classmethod
    def from_json(cls, value: object, where: str = "the engine", *, strict: bool = True) -> Engine:
        fields = Fields(value, where, strict=strict)
        engine = cls(
            id=fields.text("id"),
            budget=fields.text("budget"),
            kind=cast(Literal["sequence", "stream", "anchor"], fields.text("kind", KINDS)),
            backend=fields.text("backend"),
            precision=fields.text("precision"),
            files=tuple(check_relative(path, where) for path in fields.sequence("files")),
            inputs=_tensors(fields, "inputs"),
            outputs=_tensors(fields, "outputs"),
            requires=fields.mapping("requires", optional=True) or {},
            chunk=fields.integer("chunk", 1, optional=True),
            profile=fields.mapping("profile", optional=True),
            stream=_stream(fields),
            graph=tuple(check_relative(path, where) for path in fields.sequence("graph", optional=True)),
            proof=fields.mapping("proof", optional=True),
            execution=_execution(fields),
        )
        fields.finish()
        _check_engine(engine, where)
        return engine

    def to_json(self) -> JsonObject:
        """The entry as written; without `stream` and the keys behind it where there is none, as before they came to be."""
        entry = cast(JsonObject, _plain(asdict(self)))
        return {key: value for key, value in entry.items() if key not in _LATER or value}


@dataclass(frozen=True)
class ModelInfo:
    """What was compiled. `hash` identifies the checkpoint's content; `id2label` and `frontend` are what an app needs."""

    name: str
    family: str
    task: str
    hash: str
    id2label: tuple[str, ...] = ()
    frontend: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object, where: str = "model", *, strict: bool = True) -> ModelInfo:
        fields = Fields(value, where, strict=strict)
        info = cls(
            name=fields.text("name"),
            family=fields.text("family"),
            task=fields.text("task"),
            hash=fields.text("hash"),
            id2label=_labels(fields.mapping("id2label", optional=True) or {}, where),
            frontend=fields.mapping("frontend", optional=True),
            metadata=fields.mapping("metadata", optional=True) or {},
        )
        fields.finish()
        return info

    def to_json(self) -> JsonObject:
        return asdict(self) | {"id2label": {str(index): label for index, label in enumerate(self.id2label)}}


@dataclass(frozen=True)
class Manifest:
    """The whole manifest; see the module's docstring. `from_json` checks every reference between its parts."""

    model: ModelInfo
    target: JsonObject
    overflow: str
    budgets: tuple[Budget, ...]
    engines: tuple[Engine, ...]
    default: str
    files: dict[str, str]
    limits: JsonObject = field(default_factory=dict)
    schema_version: str = SCHEMA_VERSION

    @classmethod
    def from_json(cls, value: object, where: str = MANIFEST_NAME) -> Manifest:
        """Read a decoded document. Raises BundleError for anything that does not hold together."""
        fields = Fields(value, where)
        version, strict = _check_version(fields.text("schema_version"), where)
        fields.strict = strict
        manifest = cls(
            schema_version=version,
            model=ModelInfo.from_json(fields.take("model"), f"{where}: model", strict=strict),
            target=_required(fields.mapping("target")),
            overflow=fields.text("overflow", OVERFLOWS),
            limits=fields.mapping("limits", optional=True) or {},
            budgets=tuple(
                Budget.from_json(item, f"{where}: budgets[{index}]", strict=strict)
                for index, item in enumerate(fields.sequence("budgets"))
            ),
            engines=tuple(
                Engine.from_json(item, f"{where}: engines[{index}]", strict=strict)
                for index, item in enumerate(fields.sequence("engines"))
            ),
            default=fields.text("default"),
            files=_hashes(_required(fields.mapping("files")), where),
        )
        fields.finish()
        _check_references(manifest, where)
        return manifest

    def to_json(self) -> JsonObject:
        """The document as written; `from_json` of it gives an equal manifest."""
        return {
            "schema_version": self.schema_version,
            "model": self.model.to_json(),
            "target": self.target,
            "overflow": self.overflow,
            "limits": self.limits,
            "budgets": [asdict(budget) for budget in self.budgets],
            "engines": [engine.to_json() for engine in self.engines],
            "default": self.default,
            "files": self.files,
        }

    def engine(self, id: str) -> Engine:
        """The engine called `id`; KeyError if there is none."""
        return {engine.id: engine for engine in self.engines}[id]


def read_manifest(root: str | Path) -> Manifest:
    """Read `root/manifest.json`. BundleError: not a bundle, damaged, or newer. Hashes are checked by `verify_files`."""
    root = Path(root)
    where = str(root / MANIFEST_NAME)
    if not root.is_dir() or not (root / MANIFEST_NAME).is_file():
        raise BundleError(f"{root} is not a bundle: expected a directory with {MANIFEST_NAME}, written by essm-deploy build")
    try:
        with resolve_file(root, MANIFEST_NAME).open("rb") as stream:
            content = stream.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise BundleError(f"{where} is larger than 16 MiB: not a manifest")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{where} cannot be read as UTF-8 text: {error.__class__.__name__}") from None
    return Manifest.from_json(parse_json(text, where), where)


def verify_files(root: str | Path, manifest: Manifest) -> None:
    """Compare every file of the bundle with its sha256; IntegrityError names the first that differs or is missing."""
    verify_hashes(Path(root), manifest.files)


def _check_version(text: str, where: str) -> tuple[str, bool]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise BundleError(f"{where}: schema_version is {text[:40]!r}, expected {SCHEMA_VERSION!r}")
    ours = tuple(map(int, SCHEMA_VERSION.split(".")))
    found = (int(match[1]), int(match[2]))
    if found[0] > ours[0]:
        raise BundleError(
            f"{where} has the newer schema_version {text}, this version reads {SCHEMA_VERSION}: upgrade essm-deploy"
        )
    if found[0] < ours[0]:
        raise BundleError(f"{where} has schema_version {text}, this version reads {SCHEMA_VERSION}: build the bundle again")
    return text, found <= ours


def _check_engine(engine: Engine, where: str) -> None:
    if not engine.files:
        raise BundleError(f"{where} names no file")
    if (engine.kind == "stream") != (engine.chunk is not None):
        raise BundleError(f"{where}: a stream engine has a chunk length, no other engine has one")
    if (engine.kind == "stream") != (engine.stream is not None):
        raise BundleError(f"{where}: a stream engine has a 'stream' object, no other engine has one")
    if engine.profile is not None and engine.profile.get("basis") not in BASES:
        raise BundleError(f"{where}: profile has no basis, expected measured or estimated")
    for tensors in (engine.inputs, engine.outputs):
        _check_unique([tensor.name for tensor in tensors], f"{where}: tensor")


def _check_references(manifest: Manifest, where: str) -> None:
    budgets = [budget.id for budget in manifest.budgets]
    engines = [engine.id for engine in manifest.engines]
    _check_unique(budgets, f"{where}: budget")
    _check_unique(engines, f"{where}: engine")
    if not isinstance(manifest.target.get("name"), str):
        raise BundleError(f"{where}: target has no name")
    for engine in manifest.engines:
        if engine.budget not in budgets:
            raise BundleError(f"{where}: engine {engine.id!r} has the budget {engine.budget!r}, which is not listed")
        for path in (*engine.files, *engine.graph):
            if path not in manifest.files:
                raise BundleError(f"{where}: engine {engine.id!r} names {path!r}, which has no sha256 under files")
        _check_stream(manifest, engine, where)
    if manifest.default not in engines or manifest.engine(manifest.default).kind == "anchor":
        raise BundleError(f"{where}: the default engine {manifest.default!r} is not listed as a sequence or stream engine")


def _check_stream(manifest: Manifest, engine: Engine, where: str) -> None:
    if engine.stream is None:
        return
    if engine.stream.overflow != manifest.overflow:
        raise BundleError(f"{where}: engine {engine.id!r} has the overflow {engine.stream.overflow!r}, the model another")
    anchors = [entry.id for entry in manifest.engines if entry.kind == "anchor"]
    if engine.stream.anchor is not None and engine.stream.anchor not in anchors:
        raise BundleError(f"{where}: engine {engine.id!r} has the anchor {engine.stream.anchor!r}, which is no anchor engine")


def _check_unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BundleError(f"{what} {name!r} is listed twice")
        seen.add(name)


def _tensors(fields: Fields, name: str) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo.from_json(item, f"{fields.where}: {name}[{index}]", strict=fields.strict)
        for index, item in enumerate(fields.sequence(name))
    )


def _stream(fields: Fields) -> StreamInfo | None:
    value = fields.mapping("stream", optional=True)
    return None if value is None else StreamInfo.from_json(value, f"{fields.where}: stream", strict=fields.strict)


def _execution(fields: Fields) -> JsonObject | None:
    value = fields.mapping("execution", optional=True)
    if value is not None and not (value.keys() <= {"cuda_graph"} and all(isinstance(v, bool) for v in value.values())):
        raise fields.wrong("execution", value, 'an object such as {"cuda_graph": true}')
    return value


def _shape(values: list[Any], where: str) -> tuple[int | str, ...]:
    for value in values:
        named = isinstance(value, str) and value.isidentifier()
        sized = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
        if not (named or sized) or len(values) > 8:
            raise BundleError(f"{where}: shape holds something else than up to 8 sizes or names")
    return tuple(values)


def _labels(id2label: JsonObject, where: str) -> tuple[str, ...]:
    try:
        labels = tuple(id2label[str(index)] for index in range(len(id2label)))
    except KeyError:
        raise BundleError(f"{where}: id2label has gaps, expected the keys 0 to {len(id2label) - 1}") from None
    if not all(isinstance(label, str) and label and label.isprintable() for label in labels):
        raise BundleError(f"{where}: id2label holds something else than printable strings")
    return labels


def _hashes(files: JsonObject, where: str) -> dict[str, str]:
    for path, digest in files.items():
        check_relative(path, where)
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise BundleError(f"{where}: the sha256 of {path!r} is not 64 lower-case hex digits")
    return files


def _required(mapping: JsonObject | None) -> JsonObject:
    assert mapping is not None  # Fields refuses the absence of what is not optional
    return mapping


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
