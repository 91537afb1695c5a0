"""Reading downloaded files: bounded, without pickles, one line for what is wrong."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.errors import InputError, UsageError
from essm_train.tasks.examples import PixelRows, brightness, pack
from essm_train.tasks.png import decode_png, encode_png, read_png
from essm_train.tasks.reading import Archive, first_existing, fraction, load_arrays, read_file, read_text_file


def test_gzip_is_unpacked_whatever_the_name_says(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"text")
    (tmp_path / "packed").write_bytes(gzip.compress(b"text"))
    assert read_file(tmp_path / "plain", "text") == read_file(tmp_path / "packed", "text") == b"text"


@pytest.mark.parametrize("size", [100, 20])
def test_an_interrupted_download_says_so(tmp_path: Path, size: int) -> None:
    (tmp_path / "part.gz").write_bytes(gzip.compress(np.random.default_rng(0).bytes(1000))[:size])
    with pytest.raises(InputError, match=r"part.gz: gzip data ends or breaks early .*download it again") as caught:
        read_file(tmp_path / "part.gz", "text")
    assert "\n" not in str(caught.value)


def test_what_unpacks_without_end_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(InputError, match=r"unpacks to more than 1000000 bytes"):
        read_file(tmp_path / "bomb.gz", "text", limit=10**6)


def test_a_wrong_encoding_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"first\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"byte 9 \(line 2\) is not UTF-8; expected a list"):
        read_text_file(tmp_path / "latin", "a list")


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt"])
def test_an_archive_is_read_in_memory_whatever_its_names_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "a.zip", "w") as archive:
        archive.writestr(name, "hello")
    read = Archive(tmp_path / "in" / "a.zip", "a zip")
    assert [read.read(found) for found in read.names(".txt")] == [b"hello"]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.zip"]


def test_a_member_that_is_too_large_or_broken_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", bytes(2000))
    with pytest.raises(InputError, match=r"'large' has 2000 bytes; expected at most 1000"):
        Archive(path, "a zip").read("large", 1000)
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"'large' is broken"):
        Archive(path, "a zip").read("large")


def test_half_a_zip_is_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("member", bytes(2000))
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:500])
    with pytest.raises(InputError, match=r"not a whole zip file .*download it again"):
        Archive(tmp_path / "a.zip", "a zip")


def test_nothing_pickled_is_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "run"),))  # type: ignore[return-value]

    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not a sound npz file without pickles"):
        load_arrays(tmp_path / "a.npz", ("x",), "an array x")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match=r"not a sound npz file without pickles"):
        load_arrays(tmp_path / "b.npz", ("x",), "an array x")
    assert not (tmp_path / "run").exists()


def test_a_missing_array_and_a_missing_file_say_what_is_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(InputError, match=r"holds \['x'\] and no 'y'; expected x and y"):
        load_arrays(tmp_path / "a.npz", ("x", "y"), "x and y")
    with pytest.raises(UsageError, match=r"holds none of b, c; the layout"):
        first_existing(tmp_path, ("b", "c"), "the layout")
    assert first_existing(tmp_path, ("b", "a.npz"), "the layout").name == "a.npz"


def test_a_fraction_is_of_the_name_alone_and_spreads_evenly() -> None:
    found = [fraction(f"film {i}") for i in range(2000)]
    assert fraction("film 7") == found[7]
    # the mean of 2,000 uniform numbers has a standard deviation of 0.0065
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)


# Images


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_every_filter_of_a_png_is_undone(height: int, width: int, kind: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width), np.uint8)
    np.testing.assert_array_equal(decode_png(filtered_png(image, kind)), image)


def filtered_png(image: np.ndarray, kind: int) -> bytes:
    """The image with every row filtered by `kind`, in the words of the standard."""
    rows, above = [], np.zeros(image.shape[1], int)
    for line in image.astype(int):
        left, corner = np.concatenate([[0], line[:-1]]), np.concatenate([[0], above[:-1]])
        guess = left + above - corner
        paeth = [min((a, b, c), key=lambda v, g=g: abs(g - v)) for a, b, c, g in zip(left, above, corner, guess, strict=True)]
        predicted = [np.zeros_like(line), left, above, (left + above) // 2, np.array(paeth)][kind]
        rows.append(bytes([kind]) + ((line - predicted) % 256).astype(np.uint8).tobytes())
        above = line
    parts = decoded_parts(encode_png(image))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(k, zlib.compress(b"".join(rows)) if k == b"IDAT" else b) for k, b in parts)


def decoded_parts(png: bytes) -> list[tuple[bytes, bytes]]:
    parts, place = [], 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        parts.append((kind, png[place + 8 : place + 8 + size]))
        place += 12 + size
    return parts


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_colour_becomes_the_luma(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\x00" + bytes([255, 0, 0, 10, 20, 30]))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(data)
    assert read_png(tmp_path / "a.png").tolist() == [[76, round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)]]


@given(st.binary(max_size=60), st.integers(0, 90))
def test_a_damaged_png_is_one_line(noise: bytes, cut: int) -> None:
    whole = encode_png(np.arange(16, dtype=np.uint8).reshape(4, 4))
    damaged = whole[:cut] + noise
    if damaged[: len(whole)] != whole:
        with pytest.raises((ValueError, zlib.error, struct.error)):
            decode_png(damaged)


def test_a_png_that_claims_to_be_huge_is_refused_before_it_is_unpacked() -> None:
    header = struct.pack(">IIBBBBB", 2**20, 2**20, 8, 0, 0, 0, 0)
    with pytest.raises(ValueError, match=r"1048576 x 1048576"):
        decode_png(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b""))


# Examples


def test_rows_are_padded_behind_and_keep_their_lengths() -> None:
    examples = pack([np.array([3, 4]), np.array([5]), np.array([6, 7, 8])], [1, 0, 1])
    tokens, lengths = examples.rows(np.array([2, 1]))
    assert tokens.tolist() == [[6, 7, 8], [5, 0, 0]]
    assert lengths is not None
    assert lengths.tolist() == [3, 1]


def test_pixels_are_normalised_by_the_training_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3000, 4, 4), np.uint8)
    rows = PixelRows(images, np.zeros(3000, np.int64), *brightness(images))
    steps, lengths = rows.rows(np.arange(3000))
    assert steps.shape == (3000, 16, 1)
    assert lengths is None
    # mean and deviation are kept to five decimals
    assert (float(steps.mean()), float(steps.std())) == (pytest.approx(0.0, abs=1e-4), pytest.approx(1.0, abs=1e-4))
