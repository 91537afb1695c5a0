"""A training state that cannot be written leaves the last good one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from essm_deploy.errors import BuildError
from essm_train.progress import drop_later_steps
from essm_train.state import load_state, save_state


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_a_full_disk_leaves_the_last_good_state(tmp_path: Path) -> None:
    state, weights = tmp_path / "state.pt", torch.ones(100_000)
    save_state(state, {"recipe": {}, "step": 1, "model": {"w": weights}})
    (tmp_path / "state.tmp").symlink_to("/dev/full")  # what is written there finds no space
    with pytest.raises(BuildError, match=r"cannot be written.*last good one is whole"):
        save_state(state, {"recipe": {}, "step": 2, "model": {"w": 2 * weights}})
    kept = load_state(state, {})
    assert kept is not None
    assert kept["step"] == 1
    assert torch.equal(kept["model"]["w"], weights)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    save_state(state, {"recipe": {}, "step": 2})  # there is room again
    assert torch.load(state, weights_only=True)["step"] == 2


def test_a_first_state_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where a folder should be")
    with pytest.raises(BuildError, match="there was none before"):
        save_state(tmp_path / "folder" / "state.pt", {})


def test_what_was_logged_after_the_last_state_is_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 0}\n{"epoch": 1}\n{"step": 1}\n{"step": 2}\n{"epo')
    drop_later_steps(log, 1)
    assert log.read_text() == '{"step": 0}\n{"epoch": 1}\n'
