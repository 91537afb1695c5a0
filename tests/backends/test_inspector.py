"""What TensorRT says of its compiled layers is read in every spelling that it has, and held against the fp32 island.

The layers are those of a real engine: TensorRT-RTX 1.7.1 listed them when it had built the small classifier of the tests, K=4,
in fp16 for compute capability 8.6 (data/layers-rtx-1.7.1-fp16.txt, beside the graph that was built). No inspector can be asked
without a GPU; its JSON is the same layers, spelled as its documentation has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from essm_deploy.backends.emit import prepare
from essm_deploy.backends.tensorrt import RTX, TensorRtBackend
from essm_deploy.backends.tensorrt.inspector import (
    Layer,
    LayersProof,
    LayerTensor,
    inspected_layers,
    listed_layers,
    prove_layers,
)
from essm_deploy.errors import VerificationError
from essm_deploy.families import open_checkpoint

RECORDED = Path(__file__).parent / "data" / "layers-rtx-1.7.1-fp16.txt"
LISTING = RECORDED.read_text()
PROOF = LayersProof(layers=11, across=4, tensors=31)
SEPARATORS = ("\x1e", "\x1f", "")
SPELLINGS = {
    "10.x": lambda kind: {"Format/Datatype": {"FLOAT": "Float", "HALF": "Half", "": "Int64"}[kind]},
    "10.x in words": lambda kind: {
        "Format/Datatype": f"Row major linear { ({'FLOAT': 'FP32', 'HALF': 'FP16', '': 'Int64'}[kind]) } format"
    },
    "11.x": lambda kind: {
        "Format": "(Linear) Row major linear format",
        "Datatype": {"FLOAT": "Float", "HALF": "Half", "": "Int64"}[kind],
    },
    "11.x with a capital": lambda kind: {"Format": "LINEAR", "DataType": {"FLOAT": "FP32", "HALF": "FP16", "": "INT64"}[kind]},
}


@pytest.fixture
def graph() -> Path:
    """The graph that the recorded engine was built from, without its weights."""
    return RECORDED.with_suffix(".onnx")


def as_json(layers: list[Layer], spelled: Callable[[str], dict[str, str]], separator: str = "\x1e") -> str:
    """The layers as the inspector's JSON has them; its strings hold bare control characters."""

    def side(layer: Layer, role: str) -> list[dict[str, Any]]:
        return [{"Name": t.name, "Dimensions": [1], **spelled(t.kind)} for t in layer.tensors if t.role == role]

    entries = [
        {
            "Name": layer.name,
            "LayerType": layer.kind,
            **{role: side(layer, role) for role in ("Inputs", "Constants", "Outputs")},
            "TacticName": layer.tactic,
            "StreamId": 0,
            "Metadata": separator.join(f"[ONNX Layer: {origin}]" for origin in layer.origins),
        }
        for layer in layers
    ]
    ports = [{"Name": "features", "IOMode": "Input", "DataType": "Float"}]
    return json.dumps({"Layers": entries, "I/O Tensors": ports}).replace("\\u001e", "\x1e").replace("\\u001f", "\x1f")


def test_the_builders_listing_is_read_whole(graph: Path) -> None:
    layers = listed_layers(LISTING)
    assert len(layers) == len(re.findall(r"LayerType: ", LISTING))
    assert sum(len(layer.tensors) for layer in layers) == len(re.findall(r"Datatype: ", LISTING))
    assert {tensor.kind for layer in layers for tensor in layer.tensors} == {"FLOAT", "HALF", ""}
    products = [layer for layer in layers if layer.multiplies and any("spectral" in origin for origin in layer.origins)]
    convolutions = [("layers.0/spectral/MatMul",), ("layers.1/spectral/MatMul",)]
    assert [layer.origins for layer in products] == [("spectral/input/Gemm",), *convolutions]
    assert prove_layers(graph, layers, "here") == PROOF


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_inspectors_json_says_the_same_in_every_spelling(graph: Path, spelling: str, separator: str) -> None:
    layers = listed_layers(LISTING)
    found = inspected_layers(as_json(layers, SPELLINGS[spelling], separator), "here")
    assert found == layers
    assert prove_layers(graph, found, "here") == PROOF


def changed(pick: Callable[[Layer], bool], change: Callable[[Layer], Layer]) -> list[Layer]:
    """The recorded layers with the first that `pick` finds changed."""
    layers = listed_layers(LISTING)
    index = next(i for i, layer in enumerate(layers) if pick(layer))
    return [*layers[:index], change(layers[index]), *layers[index + 1 :]]


def product(layer: Layer) -> bool:
    return layer.multiplies and layer.origins == ("layers.0/spectral/MatMul",)


def gating(layer: Layer) -> bool:
    return any(origin.startswith("layers.0/spectral/Mul") for origin in layer.origins) and not layer.multiplies


def in_half(layer: Layer, role: str = "") -> Layer:
    tensors = [replace(t, kind="HALF") if t.kind == "FLOAT" and role in ("", t.role) else t for t in layer.tensors]
    return replace(layer, tensors=tuple(tensors))


@pytest.mark.parametrize("role", ["Inputs", "Constants", "Outputs"])
def test_a_product_of_the_island_in_half_is_named(graph: Path, role: str) -> None:
    layers = changed(product, lambda layer: in_half(layer, role))
    with pytest.raises(VerificationError, match=r"of layer .*MatMul.* is HALF; the spectral island must be FLOAT"):
        prove_layers(graph, layers, "k4-sequence-fp16")


@pytest.mark.parametrize(
    "tactic",
    [
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage6_warpsize2x2x1_tensor16x8x8",
        "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4",
        "sm80_xmma_gemm_f16f32_f16f32_f32_nn_n_tilesize64x64x32",
        "ampere_bf16_s16816gemm_bf16_64x64_nn",
    ],
)
def test_float_tensors_that_are_multiplied_as_something_else_are_not_believed(graph: Path, tactic: str) -> None:
    layers = changed(product, lambda layer: replace(layer, tactic=tactic))
    with pytest.raises(VerificationError, match=r"multiplies with the kernel .*which is not fp32"):
        prove_layers(graph, layers, "here")


@pytest.mark.parametrize(
    "tactic",
    [
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4",
        "__myl_FcAdd_0xbf16f16aa",  # a hash is no kernel's type
        "ampere_sgemm_64x64_nn",
    ],
)
def test_kernels_of_fp32_are(graph: Path, tactic: str) -> None:
    assert prove_layers(graph, changed(product, lambda layer: replace(layer, tactic=tactic)), "here") == PROOF


def test_half_on_the_outer_side_of_a_border_needs_a_cast_in_the_layer(graph: Path) -> None:
    layers = listed_layers(LISTING)
    border = [layer for layer in layers if gating(layer) and any(tensor.kind == "HALF" for tensor in layer.tensors)]
    assert border  # the recorded engine has such layers, and is proved
    without = changed(
        lambda layer: layer in border,
        lambda layer: replace(layer, origins=tuple(o for o in layer.origins if "Cast" not in o)),
    )
    with pytest.raises(VerificationError, match="is HALF"):
        prove_layers(graph, without, "here")


def test_a_tensor_of_the_island_in_half_is_named_wherever_it_turns_up(graph: Path) -> None:
    stray = Layer("copy", "kgen", "", (), (LayerTensor("layers.1/spectral/Concat.1_10_myl0", "Inputs", "HALF"),))
    with pytest.raises(VerificationError, match=r"layers\.1/spectral/Concat\.1_10_myl0 of layer copy is HALF"):
        prove_layers(graph, [*listed_layers(LISTING), stray], "here")


def test_a_type_that_nobody_knows_is_not_taken_for_float(graph: Path) -> None:
    text = as_json(listed_layers(LISTING), SPELLINGS["11.x"]).replace('"Datatype": "Float"', '"Datatype": "Posit32"')
    with pytest.raises(VerificationError, match="is POSIT32; the spectral island must be FLOAT"):
        prove_layers(graph, inspected_layers(text, "here"), "here")


def test_a_product_that_no_layer_shows_is_not_taken_for_granted(graph: Path) -> None:
    layers = [layer for layer in listed_layers(LISTING) if not product(layer)]
    with pytest.raises(VerificationError, match=r"no layer of the engine shows layers\.0/spectral/MatMul,"):
        prove_layers(graph, layers, "here")
    with pytest.raises(VerificationError, match="no layer of the engine shows"):
        prove_layers(graph, [], "here")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON object with Layers"),
        ("[]", "no JSON object with Layers"),
        ('{"Layers": 3}', "no JSON object with Layers"),
        ('{"Bindings": []}', "no JSON object with Layers"),
        ("[" * 100_000, "no JSON object with Layers"),
        ('{"Layers": ["conv1 + relu", "gemm"]}', "names its layers and nothing else"),
        ('{"Layers": [3]}', "a layer that is no object"),
    ],
)
def test_what_is_no_account_of_layers_is_one_line(text: str, said: str) -> None:
    with pytest.raises(VerificationError, match=said) as caught:
        inspected_layers(text, "k4-sequence")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("k4-sequence: ")


@pytest.mark.parametrize("line", ["", "Layers: ", "[VERBOSE] nothing of the kind", "Name: a, Name: b"])
def test_a_log_without_a_listing_has_no_layers(line: str) -> None:
    assert listed_layers(line) == []


@pytest.mark.tensorrt_rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_layers_that_were_compiled_are_proved_when_they_are_built(keywords: Path, tmp_path: Path, precision: Any) -> None:
    backend = TensorRtBackend(RTX, ("8.6",))
    made = prepare(tmp_path, open_checkpoint(keywords), [4], 1, backend, precision=precision)
    for engine in (made.sequence(4), made.stream(4, 1)):
        assert engine.proof is not None
        assert engine.proof["compiled"]["layers"] >= 5
        assert engine.proof["compiled"]["tensors"] >= 10
        assert engine.proof["inspected"] == "not yet verified"


@pytest.mark.tensorrt_rtx
def test_layers_that_were_compiled_to_something_else_fail_the_build(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from essm_deploy.backends.tensorrt import backend
    from essm_deploy.errors import BuildError

    monkeypatch.setattr(backend, "listed_layers", lambda line: changed(product, in_half))
    with pytest.raises(BuildError, match="is HALF; the spectral island must be FLOAT"):
        prepare(tmp_path, open_checkpoint(keywords), [4], 1, TensorRtBackend(RTX, ("8.6",))).sequence(4)
    monkeypatch.setattr(backend, "listed_layers", lambda line: [])
    engine = prepare(tmp_path, open_checkpoint(keywords), [4], 1, TensorRtBackend(RTX, ("8.6",))).sequence(4)
    assert engine.proof is not None
    assert engine.proof["compiled"] is None
