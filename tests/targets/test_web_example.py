"""The example page opens a bundle in a browser and shows what its engine answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from essm_deploy import compile, runtime
from essm_deploy.bundle.vectors import write_vectors
from essm_deploy.compile import Request
from essm_deploy.frontend import read_audio
from essm_deploy.profiling.measure import Settings
from essm_deploy.runtime.vectors import read_vectors
from tests.chromium import Page
from tests.chromium import chromium as browser
from tests.targets.web import run_module

EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


def test_the_page_reads_test_vectors_as_numpy_does(tmp_path: Path, node: str) -> None:
    rng = np.random.default_rng(0)
    inputs = {"features": rng.standard_normal((2, 3, 4)).astype(np.float32), "lengths": np.array([3, 2])}
    write_vectors(tmp_path / "v.npz", inputs, {"k2": {"logits": rng.standard_normal((2, 5))}})
    code = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ readNpz }} from {json.dumps((EXAMPLE / "npz.mjs").as_uri())};
    const found = readNpz(new Uint8Array(readFileSync({json.dumps(str(tmp_path / "v.npz"))})));
    tell(Object.fromEntries(Object.entries(found).map(([name, {{ data, dims }}]) => [name, [[...data].map(Number), dims]])));
    """
    found = {name: np.reshape(*value) for name, value in run_module(code, node=node).items()}
    read, expected = read_vectors(tmp_path / "v.npz")
    for name, array in {**{f"input/{n}": a for n, a in read.items()}, "output/k2/logits": expected["k2"]["logits"]}.items():
        np.testing.assert_array_equal(found.pop(name), array)
    assert not found


@pytest.mark.slow
def test_the_page_shows_what_the_runtime_answers(shipped: Path, tmp_path: Path, package: Path, chromium: str) -> None:
    settings = Settings(min_samples=20, min_seconds=0.05, warmup_seconds=0.2)
    compile.build(Request(shipped, "cpu", budgets=(4,), settings=settings), tmp_path / "bundle", lambda line: None)
    write_clip(tmp_path / "clip.wav")
    model = runtime.load(tmp_path / "bundle")
    expected = model.classify(read_audio(tmp_path / "clip.wav", 16000))
    with serving(tmp_path / "bundle") as address, browser(tmp_path / "profile") as page:
        page.open(address)
        facts = shown(page, "difference from the reference")
        assert float(facts["difference from the reference"]) < 1e-5
        assert facts["threads"].isdigit()  # nothing about isolation
        assert page.evaluate("document.getElementById('about').textContent") == "keywords: built for cpu"
        document = page.call("DOM.getDocument")["root"]["nodeId"]
        field = page.call("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=field, files=[str(tmp_path / "clip.wav")])
        assert shown(page, "clip")["clip"] == "1.00 s"
        cells = "Array.from(document.querySelectorAll('tr'), (line) => Array.from(line.cells, (cell) => cell.textContent))"
        assert page.complaints() == []
        found = [(label, float(score)) for label, _, score in page.evaluate(cells)]
    assert [label for label, _ in found] == [entry["label"] for entry in expected]
    # The page shows three digits; browser and numpy decode the same samples and differ in rounding.
    assert [score for _, score in found] == pytest.approx([entry["score"] for entry in expected], abs=2e-3)


@contextmanager
def serving(bundle: Path) -> Iterator[str]:
    """The example's address."""
    command = [sys.executable, str(EXAMPLE / "serve.py"), str(bundle), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def shown(page: Page, name: str) -> dict[str, str]:
    """The page's facts, once `name` is among them."""
    program = (
        "Object.fromEntries(Array.from(document.querySelectorAll('dt'), (e) => [e.textContent, e.nextSibling.textContent]))"
    )
    deadline = time.monotonic() + 60
    while name not in (facts := page.evaluate(program)):
        assert time.monotonic() < deadline, page.evaluate("document.body.innerText")
        time.sleep(0.1)
    return dict(facts)


def write_clip(path: Path) -> None:
    """A second of a tone that rises."""
    samples = (8000 * np.sin(np.arange(16000) ** 1.4 * 0.002)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())
