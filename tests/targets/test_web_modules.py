"""Our JavaScript modules, each against its Python counterpart, in Node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from essm_deploy.frontend.logmel import LogMel
from essm_deploy.runtime.dependence import effective_samples
from essm_deploy.runtime.wire import decode_arrays, encode_arrays
from tests.targets.web import run_module

REGIONS = [("a", "weights.bin", 0, 16), ("b", "weights.bin", 8192, 24), ("c", "own.bin", 4096, 32)]


def write_graph(path: Path, regions: list[tuple[str, str, int, int]]) -> None:
    """A graph whose initializers, one of them inside a branch, are these pieces of other files."""
    tensors = []
    for name, location, offset, length in regions:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[length // 4], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    branch = helper.make_graph([], "branch", [], [], tensors[2:])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", [], [], tensors[:2])).SerializeToString())


def regions_of(path: Path, node: str) -> list[dict[str, object]]:
    code = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ externalRegions }} from "./external.mjs";
    try {{ tell(externalRegions(new Uint8Array(readFileSync({json.dumps(str(path))})), "it")); }}
    catch (error) {{ tell({{ name: error.name, message: error.message }}); }}
    """
    found: list[dict[str, object]] = run_module(code, node=node)
    return found


def test_the_pieces_of_other_files_are_found(tmp_path: Path, node: str) -> None:
    write_graph(tmp_path / "g.onnx", REGIONS)
    found = {(entry["location"], entry["offset"], entry["length"]) for entry in regions_of(tmp_path / "g.onnx", node)}
    assert found == {region[1:] for region in REGIONS}


def test_a_damaged_graph_is_refused_and_never_misread(tmp_path: Path, node: str) -> None:
    write_graph(tmp_path / "g.onnx", REGIONS)
    content = (tmp_path / "g.onnx").read_bytes()
    for end in (1, 7, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.onnx").write_bytes(content[:end])
        assert regions_of(tmp_path / "cut.onnx", node)["name"] == "BundleError"  # type: ignore[call-overload]


def test_only_what_the_graph_reads_is_read(tmp_path: Path, node: str) -> None:
    far = [("a", "weights.bin", 0, 16), ("b", "weights.bin", 4096, 24), ("c", "weights.bin", 10_000_000, 32)]
    write_graph(tmp_path / "g.onnx", far)
    code = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ externalData }} from "./weights.mjs";
    const asked = [];
    const source = {{ read: async (path, offset, length) => {{
      asked.push([path, offset, length]);
      return new Uint8Array(length).fill(7);
    }} }};
    const graph = new Uint8Array(readFileSync({json.dumps(str(tmp_path / "g.onnx"))}));
    const [file] = await externalData(source, {{ id: "e", files: ["g.onnx", "weights.bin"] }}, graph);
    tell({{ asked, path: file.path, length: file.data.length, there: file.data[10_000_001], between: file.data[5_000_000] }});
    """
    found = run_module(code, node=node)
    assert found["asked"] == [["weights.bin", 0, 4120], ["weights.bin", 10_000_000, 32]]
    assert (found["path"], found["length"], found["there"], found["between"]) == ("weights.bin", 10_000_032, 7, 0)


def test_a_graph_may_read_its_engines_files_only(tmp_path: Path, node: str) -> None:
    for location in ("../secret.bin", "/etc/passwd", "other.bin", "./weights.bin/../other.bin"):
        write_graph(tmp_path / "g.onnx", [("a", location, 0, 16), ("b", location, 0, 16), ("c", location, 0, 16)])
        code = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ externalData }} from "./weights.mjs";
        const graph = new Uint8Array(readFileSync({json.dumps(str(tmp_path / "g.onnx"))}));
        const engine = {{ id: "e", files: ["g.onnx", "weights.bin"] }};
        try {{ await externalData({{ read: () => tell("read") }}, engine, graph); }} catch (error) {{ tell(error.name); }}
        """
        assert run_module(code, node=node) == "BundleError"


def test_arrays_cross_the_wire_unchanged(node: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "f": rng.standard_normal((3, 5, 700)).astype(np.float32),
        "i": rng.integers(-(2**62), 2**62, (4,)),
        "b": np.array([True, False, True]),
        "none": np.zeros((0, 3), np.float32),
    }
    code = f"""
    import {{ decodeTensor, encodeTensor }} from "./tensors.mjs";
    const arrays = {json.dumps(encode_arrays(arrays))};
    tell(Object.fromEntries(Object.entries(arrays).map(([n, a]) => [n, encodeTensor(a.dtype, decodeTensor(n, a))])));
    """
    back = decode_arrays(run_module(code, node=node), "back")
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_random_inputs_are_those_of_the_seed_and_what_the_engine_declares(node: str) -> None:
    declared = [
        {"name": "features", "dtype": "float32", "shape": ["batch", 100, 40]},
        {"name": "tokens", "dtype": "int64", "shape": ["batch", 100], "maximum": 6},
        {"name": "lengths", "dtype": "int64", "shape": ["batch"], "maximum": 100},
    ]
    code = f"""
    import {{ randomInputs }} from "./tensors.mjs";
    const drawn = (seed) => randomInputs({json.dumps(declared)}, {{ batch: 2, length: 50, seed, count: 4 }});
    tell([1, 1, 2].map((seed) => drawn(seed).map((inputs) => Object.fromEntries(
      Object.entries(inputs).map(([name, {{ data, dims }}]) => [name, {{ dims, data: [...data].map(Number) }}])))));
    """
    one, again, other = run_module(code, node=node)
    assert one == again != other
    assert [sorted(inputs) for inputs in one] == [["features", "tokens"]] * 4
    assert [inputs["features"]["dims"] for inputs in one] == [[2, 50, 40]] * 4
    features = np.array([inputs["features"]["data"] for inputs in one])
    # 16,000 normal numbers: 5 standard errors are 0.04 of the mean and 0.028 of the deviation.
    assert abs(features.mean()) < 0.04
    assert abs(features.std() - 1) < 0.03
    assert {value for inputs in one for value in inputs["tokens"]["data"]} == set(range(7))


def test_dependent_samples_are_discounted_as_in_python(node: str) -> None:
    rng = np.random.default_rng(0)
    independent = rng.gamma(2.0, size=2000)
    bursts = independent + 5 * np.repeat(rng.random(20) < 0.2, 100)
    walk = np.cumsum(rng.standard_normal(700))
    arrays = [
        independent,
        bursts,
        independent[:150],
        walk,
        np.round(bursts),
        np.ones(50),
        np.arange(3.0),
        np.zeros(1),
        np.zeros(0),
    ]
    series = [array.tolist() for array in arrays]
    code = f"""
    import {{ effectiveSamples }} from "./dependence.mjs";
    tell({json.dumps(series)}.flatMap((samples) => [0.5, 0.95, 0.99].map((share) => effectiveSamples(samples, share))));
    """
    expected = [effective_samples(samples, share) for samples in series for share in (0.5, 0.95, 0.99)]
    assert run_module(code, node=node) == pytest.approx(expected, rel=1e-9)
    assert expected[4] < 1000  # the bursts do count


CLOCK = """
    let time = 0;
    globalThis.performance = { now: () => time };
    globalThis.setTimeout = (resolve, ms) => { time += ms; resolve(); };
    """
"""A clock that only calls and sleep move: how busy the machine is does not matter."""


@pytest.mark.parametrize(
    ("plan", "count", "ms"),
    [
        ({"min_samples": 40, "min_seconds": 0, "max_seconds": 5}, 40, 80),
        ({"min_samples": 1, "min_seconds": 0.2, "max_seconds": 5}, 100, 200),
        ({"min_samples": 10_000, "min_seconds": 0, "max_seconds": 0.2}, 100, 200),
        ({"min_samples": 40, "min_seconds": 0, "max_seconds": 5, "support": {"percentile": 0.5, "samples": 60}}, 62, 124),
        ({"min_samples": 10, "min_seconds": 0, "max_seconds": 5, "pace_ms": 20}, 10, 202),
        ({"min_samples": 10, "min_seconds": 0, "max_seconds": 0.1, "pace_ms": 20}, 5, 102),
        ({"min_samples": 3, "min_seconds": 0, "max_seconds": 5, "pace_ms": 1}, 3, 7),
    ],
)
def test_sampling_ends_when_the_plan_says_so(plan: dict[str, object], count: int, ms: float, node: str) -> None:
    code = f"""
    import {{ sample }} from "./timing.mjs";
    {CLOCK}
    const blocks = [];
    const call = async () => {{ time += 2; }};
    for await (const block of sample(call, {json.dumps({"pace_ms": None, "support": None, **plan})})) blocks.push(block);
    tell({{ blocks, time }});
    """
    found = run_module(code, node=node)
    assert [value for block in found["blocks"] for value in block] == [2] * count
    assert found["time"] == ms
    assert all(sum(block) <= 252 for block in found["blocks"])


def test_samples_come_about_four_times_a_second(node: str) -> None:
    code = f"""
    import {{ sample }} from "./timing.mjs";
    {CLOCK}
    const blocks = [];
    const call = async () => {{ time += 2; }};
    const plan = {{ min_samples: 1000, min_seconds: 0, max_seconds: 5, pace_ms: null }};
    for await (const block of sample(call, plan)) {{
      blocks.push(block.length);
      time += 50; // what the reader takes is not part of any sample
    }}
    tell(blocks);
    """
    assert run_module(code, node=node) == [125] * 8


def warmed_up(call: str, node: str) -> dict[str, float]:
    """What `warmUp` says, how often it called and how long that took, for a call that moves the clock."""
    code = f"""
    import {{ warmUp }} from "./timing.mjs";
    {CLOCK}
    let calls = 0;
    const found = await warmUp(async () => {{ {call}; }}, {{ max_seconds: 0.3, window: 5, tolerance: 0.05 }});
    tell({{ ...found, calls, time }});
    """
    found: dict[str, float] = run_module(code, node=node)
    assert found["iterations"] == found["calls"]
    return found


def test_warm_up_ends_when_calls_have_long_been_steady(node: str) -> None:
    steady = warmed_up("time += calls++ ? 3 : 40", node)
    assert (steady["settled"], steady["first_ms"], steady["median_ms"]) == (True, 40, 3)
    # Medians of windows agree at once, but only after a second and a half is it known that they stay. A window takes 15 ms.
    assert 1500 <= steady["time"] - 40 < 1500 + 2 * 15


def test_warm_up_outlasts_the_plateau_before_better_code_is_there(node: str) -> None:
    tiers = warmed_up("calls++; time += time < 600 ? 20 : time < 1900 ? 7.5 : 3.7", node)
    assert tiers["settled"]
    assert tiers["median_ms"] == pytest.approx(3.7)
    assert 1900 + 1500 <= tiers["time"] < 1900 + 1500 + 100


def test_warm_up_gives_up_when_its_time_is_over(node: str) -> None:
    growing = warmed_up("time += 1.1 ** calls++", node)
    assert not growing["settled"]
    assert 8000 <= growing["time"] < 8900


def test_warm_up_is_soon_over_for_calls_that_take_seconds(node: str) -> None:
    slow = warmed_up("calls++; time += 3000", node)
    assert not slow["settled"]
    assert slow["iterations"] == 3  # up to eight seconds, and the call that passes them


@pytest.mark.parametrize(
    ("requires", "name"),
    [
        ({"onnxruntime": ">=1.20", "opset": 20}, None),
        ({"onnxruntime": ">=1.20,<2", "provider": "CPUExecutionProvider"}, None),
        ({"onnxruntime": "==1.30.0"}, None),
        ({"onnxruntime": ">=1.31"}, "UnavailableError"),
        ({"onnxruntime": "<1.9"}, "UnavailableError"),
        ({"onnxruntime": "~1"}, "BundleError"),
        ({"provider": "CUDAExecutionProvider"}, "UnavailableError"),
        ({"compute_capability": ["8.6"]}, "UnavailableError"),
        ({"something_new": 1}, "UnavailableError"),
    ],
)
def test_what_an_engine_needs_is_checked(requires: dict[str, object], name: str | None, node: str) -> None:
    code = f"""
    import {{ checkRequirements }} from "./requirements.mjs";
    const engine = {{ id: "e", backend: "onnxruntime", requires: {json.dumps(requires)} }};
    try {{ checkRequirements(engine, "1.30.0"); tell(null); }} catch (error) {{ tell(error.name); }}
    """
    assert run_module(code, node=node) == name


def test_the_graph_that_the_shipped_model_becomes_is_read(keywords: Path, tmp_path: Path, node: str) -> None:
    from essm_deploy.backends import BACKENDS
    from essm_deploy.backends.emit import prepare
    from essm_deploy.families import open_checkpoint

    engine = prepare(tmp_path, open_checkpoint(keywords), [4, 8], 1, BACKENDS["onnxruntime"]).sequence(4)
    graph = onnx.load(tmp_path / engine.files[0], load_external_data=False).graph
    external = [{e.key: e.value for e in tensor.external_data} for tensor in graph.initializer if tensor.external_data]
    expected = {(e["location"], int(e["offset"]), int(e["length"])) for e in external}
    found = {(r["location"], r["offset"], r["length"]) for r in regions_of(tmp_path / engine.files[0], node)}
    assert found == expected
    assert len(found) > 10


@pytest.mark.parametrize(("step_ms", "median_ms", "count"), [(0.005, 1.0, 0), (0.1, 1.0, 1), (1e-6, 0.2, 0), (0.1, 60.0, 0)])
def test_a_clock_that_is_coarse_for_the_call_is_said(step_ms: float, median_ms: float, count: int, node: str) -> None:
    code = f"""
    import {{ clockStepMs, clockWarnings }} from "./timing.mjs";
    tell({{ said: clockWarnings({step_ms}, {median_ms}), own: clockStepMs() }});
    """
    found = run_module(code, node=node)
    assert len(found["said"]) == count
    assert 0 < found["own"] < 0.01  # Node's steps by nanoseconds


def test_a_page_without_threads_says_so(node: str) -> None:
    code = """
    import { answer } from "./protocol.mjs";
    import * as fake from "../../tests/targets/fake_ort.mjs";
    const shown = {
      inputs: [{ name: "x", dtype: "float32", shape: [1, 2] }],
      outputs: [{ name: "y", dtype: "float32", shape: [1, 2] }],
    };
    const text = new TextEncoder().encode(JSON.stringify(shown));
    const graph = new Uint8Array([18, text.length % 128 | 128, text.length >> 7, ...text]); // producer_name
    const wasm = { set numThreads(count) {}, get numThreads() { return 1; } };
    const ort = { ...fake, env: { versions: { web: "1.30.0" }, wasm } };
    const source = () => ({ read: async () => graph });
    const engine = { id: "e", kind: "sequence", backend: "onnxruntime", files: ["g.onnx"], requires: {}, ...shown };
    const plan = { min_samples: 3, min_seconds: 0, max_seconds: 1, pace_ms: null };
    const warmup = { max_seconds: 0.01, window: 3, tolerance: 0.5 };
    const request = { op: "measure", root: "", engine, threads: 4, batch: 1, length: null, seed: 0, warmup, ...plan };
    const sent = [];
    const host = { ort, versions: {}, pid: 1, source, memory: () => ({ reasons: {} }) };
    const status = await answer(host, async () => request, async (message) => sent.push(message));
    tell({ status, sent });
    """
    found = run_module(code, node=node)
    assert found["status"] == 0
    assert [m["event"] for m in found["sent"] if m["event"] != "samples"] == ["hello", "loaded", "warm", "memory", "done"]
    assert found["sent"][1]["threads"] == 1
    assert found["sent"][-1]["warnings"][0] == "threads: 1 instead of 4, as the page is not cross-origin isolated"


@pytest.mark.parametrize("samples", [1, 399, 5000, 16000])
def test_a_clip_has_the_features_that_the_model_was_trained_on(samples: int, shipped: Path, node: str) -> None:
    config = json.loads((shipped / "config.json").read_text())["frontend"]
    waveform = (0.3 * np.random.default_rng(samples).standard_normal(samples)).clip(-1, 0.999).astype(np.float32)
    features, length = LogMel.from_config(config)(waveform)
    code = f"""
    import {{ LogMel }} from "./logmel.mjs";
    const {{ features, lengths }} = new LogMel({json.dumps(config)}).inputs({json.dumps(waveform.tolist())});
    tell({{ data: [...features.data], dims: features.dims, length: Number(lengths.data[0]) }});
    """
    found = run_module(code, node=node)
    assert (found["dims"], found["length"]) == ([1, *features.shape], length)
    # numpy transforms float32 in float32: 1e-6 of the loudest bin, which the logarithm of a weak band enlarges.
    np.testing.assert_allclose(np.reshape(found["data"], features.shape), features, atol=2e-4)
    assert np.abs(features[:length]).max() > 0.5


def test_a_clip_that_is_too_long_or_of_another_front_end_is_refused(shipped: Path, node: str) -> None:
    config = json.loads((shipped / "config.json").read_text())["frontend"]
    code = f"""
    import {{ LogMel }} from "./logmel.mjs";
    const named = (work) => {{ try {{ work(); return null; }} catch (error) {{ return error.name; }} }};
    const config = {json.dumps(config)};
    const mel = new LogMel(config);
    tell([() => mel.inputs(new Float32Array(16001)), () => mel.inputs([]), () => new LogMel({{ type: "mfcc" }}),
      () => new LogMel({{ ...config, n_fft: 500 }})].map(named));
    """
    assert run_module(code, node=node) == ["InputError", "InputError", "UnavailableError", "UnavailableError"]
