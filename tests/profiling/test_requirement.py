"""Named limits: what ships is sound, and whatever is wrong in a file is one line with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from essm_deploy.errors import UsageError
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.requirement import Requirement, find_requirement, known_requirements, read_requirement
from essm_deploy.profiling.verdict import Limits

HEAD = 'name = "mine"\ndescription = "of my own"\n'


def write(folder: Path, body: str, head: str = HEAD) -> Path:
    path = folder / "mine.toml"
    path.write_text(head + body)
    return path


def test_three_ship_and_each_explains_every_number() -> None:
    known = known_requirements()
    assert set(known) == {"realtime-keyword", "interactive-text", "batch-offline"}
    for name, path in known.items():
        assert read_requirement(path).name == name
        for line in path.read_text().splitlines():
            key = line.partition(" = ")[0]
            assert not line or line.startswith("#") or key in ("name", "description") or "# " in line, line


def test_a_file_becomes_limits_and_settings(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'max_latency = "1.5ms"\nmax_memory = "200MiB"\nmin_quality = 0.9\nmin_retention = "98%"\nstatistic = "p99"\n'
        'confidence = 0.99\npace = "20ms"\nkind = "stream"\nthreads = 3\n',
    )
    found = read_requirement(path)
    assert found.limits == Limits(1.5, 200 * 2**20, 0.9, 0.98)
    assert found.kind == "stream"
    usual = Settings(min_seconds=0.25)
    settings = found.settings(usual)
    assert (settings.statistic, settings.confidence, settings.pace_ms, settings.threads) == ("p99", 0.99, 20.0, 3)
    assert settings.min_seconds == 0.25


def test_what_is_not_stated_stays_as_usual(tmp_path: Path) -> None:
    found = read_requirement(write(tmp_path, 'max_latency = "10ms"\n'))
    assert found.settings(Settings(threads=2)) == Settings(threads=2)
    assert (found.kind, found.limits) == (None, Limits(10.0))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("max_latency = 10\n", "max_latency: a latency was read as '10', which has no unit: write a positive duration"),
        ('max_latency = "10"\n', "max_latency: a latency was read as '10', which has no unit"),
        ('max_latency = "10 parsecs"\n', "max_latency: .*unknown unit 'parsecs'"),
        ('max_latency = "-1ms"\n', "max_latency: .*not positive"),
        ("max_latency = true\n", "max_latency: expected text"),
        ("max_memory = 512\n", "max_memory: a size was read as '512', which has no unit"),
        ("min_retention = 98\n", "min_retention: .*not above 0 and at most 1"),
        ("min_quality = '0.9'\n", "min_quality: .*number"),
        ("latency = '10ms'\n", "unknown key 'latency'; allowed: batch, confidence, .*max_latency"),
        ("max_latency = '10ms'\nstatistic = 'mean'\n", "statistic: .*'p50', 'p90', 'p95' or 'p99'"),
        ("max_latency = '10ms'\nconfidence = 0.4\n", "confidence: .*greater than or equal to 0.5"),
        ("max_latency = '10ms'\nconfidence = 1.0\n", "confidence: .*less than 1"),
        ("max_latency = '10ms'\nkind = 'batch'\n", "kind: .*'sequence' or 'stream'"),
        ("max_latency = '10ms'\nbatch = 0\n", "batch: .*greater than or equal to 1"),
        ("max_latency = '10ms'\nbatch = 1.5\n", "batch: .*integer"),
        ("max_latency = '10ms'\nkind = 'stream'\nbatch = 4\n", "kind stream and batch 4 exclude each other"),
        ("max_latency = '50ms'\npace = '10ms'\n", "max_latency 50 ms is longer than pace 10 ms"),
        ("", "states no limit; expected at least one of max_latency, max_memory, min_quality, min_retention"),
        ("max_memory = '1GiB'\nstatistic = 'p99'\n", "statistic says how a latency is measured, and no max_latency"),
        ("max_memory = '1GiB'\npace = '10ms'\n", "pace says how a latency is measured"),
        ("max_latency = \n", "not TOML"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_key(tmp_path: Path, body: str, said: str) -> None:
    path = write(tmp_path, body)
    with pytest.raises(UsageError, match=said) as caught:
        read_requirement(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_needs_a_name_of_letters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="key 'name' is missing"):
        read_requirement(write(tmp_path, 'description = "x"\nmax_latency = "1ms"\n', head=""))
    with pytest.raises(UsageError, match="name: string should match pattern"):  # it becomes the name of a directory
        read_requirement(write(tmp_path, 'description = "x"\nmax_latency = "1ms"\n', head='name = "../up"\n'))


def test_names_and_paths_are_found_and_others_are_not(tmp_path: Path) -> None:
    assert find_requirement("realtime-keyword").limits.max_latency_ms == 5.0
    assert find_requirement(str(write(tmp_path, 'max_latency = "1ms"\n'))).name == "mine"
    with pytest.raises(UsageError, match="did you mean 'realtime-keyword'"):
        find_requirement("realtime-keywords")
    with pytest.raises(
        UsageError,
        match=r"^unknown budget file 'zzz'; known: batch-offline, .*\. A path to a \.toml file states limits of your own$",
    ):
        find_requirement("zzz")
    with pytest.raises(UsageError, match=r"nowhere.toml: cannot be read .* expected a file of limits"):
        find_requirement("nowhere.toml")


def test_what_is_given_beside_a_file_takes_the_place_of_its_own_value() -> None:
    found = Requirement("a", max_latency=10.0, threads=1).overridden(threads=4, max_latency=None, statistic="p50")
    assert (found.max_latency, found.threads, found.statistic) == (10.0, 4, "p50")
