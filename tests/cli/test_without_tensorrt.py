"""Without the extra, `build --target rtx3090` is exit code 3 and the pip line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import run


def test_the_pip_line_is_named(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, p=None: None if n.startswith("tensorrt") else real(n, p))
    arguments = ("build", keywords, "--target", "rtx3090", "--max-latency", "10ms", "-q", "-o", tmp_path / "out")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert "pip install 'essm-deploy[tensorrt-rtx]'" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
