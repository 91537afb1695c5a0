"""Progress: one live line on a terminal, plain lines with times elsewhere, nothing on stdout, nothing with -q."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from essm_deploy.cli import output
from essm_deploy.cli.output import Progress

SCRIPT = """
import sys, time
from essm_deploy.cli.output import Progress
if "--no-rich" in sys.argv:
    sys.modules["rich.console"] = sys.modules["rich.progress"] = None
import click

@click.command()
@click.option("--no-rich", is_flag=True)
@click.option("--fail", is_flag=True)
@click.option("-q", "quiet", is_flag=True)
def main(no_rich, fail, quiet):
    progress = Progress(quiet)
    progress("planned [bold]K=8[/bold]")
    progress("K=8: measuring ...")
    time.sleep(0.05)
    if fail:
        raise KeyboardInterrupt
    progress("K=8: p95 3.04 ms")
    click.echo("the result")

try:
    main.main(standalone_mode=False)
except (KeyboardInterrupt, click.Abort):
    click.echo("error: interrupted", err=True)
"""


def on_a_terminal(*arguments: str, **environment: str) -> tuple[str, str]:
    """Stdout through a pipe, and what a terminal on stderr was sent."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={
            **{k: v for k, v in os.environ.items() if k != "NO_COLOR"},
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            **environment,
        },
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    out = process.communicate(timeout=30)[0]
    os.close(master)
    return out.decode(), seen.decode()


def last_seen(text: str) -> list[str]:
    """The lines of the terminal as they stand at the end: it moves up, erases lines and returns; colours are left out."""
    screen, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", text, re.DOTALL):
        if part == "\n":
            row += 1
            screen += [""] * (row - len(screen) + 1)
        elif part == "\r":
            column = 0
        elif part.endswith("A") and len(part) > 1:
            row -= int(part[2:-1] or 1)
        elif part.endswith("K") and len(part) > 1:
            screen[row] = ""
        elif len(part) == 1:
            screen[row] = screen[row][:column].ljust(column) + part + screen[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in screen]


def test_off_a_terminal_there_are_plain_lines_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(quiet=False)
    progress("planned")
    progress("K=8: measuring ...")
    progress("K=8: p95 3.04 ms")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"\[ +\d+\.\ds\] planned\n\[ +\d+\.\ds\] K=8: p95 3\.04 ms\n", captured.err)


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(quiet=True)("planned")
    assert capsys.readouterr() == ("", "")
    assert on_a_terminal("-q") == ("the result\n", "")


def test_on_a_terminal_a_live_line_says_what_is_being_done_and_goes_away() -> None:
    out, err = on_a_terminal()
    assert out == "the result\n"
    assert "K=8: measuring ..." in err
    final = [line for line in last_seen(err) if line.strip()]
    assert [line.split("] ", 1)[1] for line in final] == ["planned [bold]K=8[/bold]", "K=8: p95 3.04 ms"]
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h")  # the cursor that was hidden is there again


def test_an_interruption_leaves_no_half_drawn_line() -> None:
    out, err = on_a_terminal("--fail")
    assert out == ""
    assert [line for line in last_seen(err) if line.strip()][-1] == "error: interrupted"
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h")


def test_no_color_is_honoured() -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*m")
    assert not [code for code in coloured.findall(on_a_terminal(NO_COLOR="1")[1]) if re.search(r"3\d|4\d|9\d", code)]


@pytest.mark.parametrize("arguments", [["--no-rich"], []])
def test_without_rich_or_on_a_dumb_terminal_lines_are_plain(arguments: list[str]) -> None:
    _, err = on_a_terminal(*arguments, **({} if arguments else {"TERM": "dumb"}))
    assert "\x1b" not in err
    assert [line.split("] ", 1)[1].strip() for line in err.splitlines()] == ["planned [bold]K=8[/bold]", "K=8: p95 3.04 ms"]


def test_progress_is_a_function_of_one_line() -> None:
    assert callable(output.Progress(quiet=True))
