from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.errors import UnitError
from essm_deploy.units import format_bytes, format_ms, parse_fraction, parse_latency, parse_size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("10ms", 10), ("1.5 s", 1500), ("800us", 0.8), ("250µs", 0.25), ("250μs", 0.25), (" 2e3ns ", 0.002), (".5ms", 0.5)],
)
def test_a_latency_is_read_in_milliseconds(text: str, milliseconds: float) -> None:
    assert parse_latency(text) == pytest.approx(milliseconds, rel=1e-12)  # one multiplication


@pytest.mark.parametrize(
    ("text", "size"), [("200MiB", 200 * 2**20), ("512MB", 512 * 10**6), ("1GiB", 2**30), ("4096B", 4096), ("1.5 KiB", 1536)]
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "fraction"), [("98%", 0.98), ("0.98", 0.98), ("100 %", 1.0), ("1", 1.0)])
def test_a_fraction_is_read_with_or_without_a_per_cent_sign(text: str, fraction: float) -> None:
    assert parse_fraction(text) == fraction


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "-1ms",
        "0ms",
        "nan",
        "nanms",
        "infs",
        "1e999s",
        "1e-400ms",
        "10 parsecs",
        "10MS",
        "1,5ms",
        "1_0ms",
        "25h",
        "1ms2",
    ],
)
def test_a_wrong_latency_is_refused_in_one_line_that_shows_it(text: str) -> None:
    with pytest.raises(UnitError, match=r"10ms, 1\.5s") as caught:
        parse_latency(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["10", "200Mb", "0B", "-5MiB", "0.1B", "nanMiB", "5000TiB", "٣MiB"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="200MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["98", "0", "0%", "101%", "-1%", "nan", "0.5x"])
def test_a_wrong_fraction_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="98%"):
        parse_fraction(text)


def test_a_missing_unit_is_said_to_be_missing() -> None:
    with pytest.raises(UnitError, match="has no unit"):
        parse_latency("10")


@given(st.text(max_size=80))
def test_no_text_raises_anything_but_a_unit_error(text: str) -> None:
    for parse in (parse_latency, parse_size, parse_fraction):
        message = ""
        try:
            assert parse(text) > 0
        except UnitError as error:
            message = str(error)
        assert "\n" not in message


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (12.345, "12.3 ms"),
        (999.9, "1 s"),
        (1500, "1.5 s"),
        (0.25, "0.25 ms"),
        (0.0123, "12.3 µs"),
        (0, "0 ms"),
        (None, "not available"),
    ],
)
def test_durations_are_shown_with_three_digits(milliseconds: float | None, text: str) -> None:
    assert format_ms(milliseconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (1023.9, "1 KiB"), (200 * 2**20, "200 MiB"), (3.25 * 2**30, "3.25 GiB"), (None, "not available")],
)
def test_sizes_are_shown_in_binary_units(size: float | None, text: str) -> None:
    assert format_bytes(size) == text
