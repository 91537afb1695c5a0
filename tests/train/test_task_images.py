"""Images read pixel by pixel: CIFAR-10's binary files, idx files, and Pathfinder's folders."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.errors import InputError, UsageError
from essm_train.tasks import images, pathfinder
from essm_train.tasks.images import IDX
from essm_train.tasks.png import encode_png
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, count in zip(IDX, (20, 20, 6, 6), strict=True):
        array = rng.integers(0, 256, (count, 28, 28)) if "images" in name else np.arange(count) % 10
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path


def test_an_image_is_one_brightness_a_step_by_rows(tmp_path: Path) -> None:
    task = images.build(smoke_recipe("images", side=32), images.smoke_data(tmp_path), CPU)
    assert (task.model_config.seq_len, task.model_config.input_size, task.model_config.num_labels) == (1024, 1, 10)
    rows = task.data.splits["train"]
    (steps, lengths), image = rows.rows(np.array([2])), rows.images[2]
    assert lengths is None
    assert steps[0, 33, 0] == pytest.approx((image[1, 1] / 255 - rows.mean) / rows.std, rel=1e-5)
    assert task.batch(0).inputs.shape == (4, 1024, 1)


def test_colours_become_grey_as_people_see_them(tmp_path: Path) -> None:
    root = images.smoke_data(tmp_path) / "cifar-10-batches-bin"
    record = bytes([3]) + bytes([255] * 1024) + bytes(2048)  # red
    (root / "test_batch.bin").write_bytes(record)
    test = images.load(tmp_path).splits["test"]
    assert test.labels.tolist() == [3]
    assert set(np.unique(test.images)) == {76}


def test_smaller_images_are_means_of_blocks(tmp_path: Path) -> None:
    root = images.smoke_data(tmp_path)
    whole, small = (images.load(root, side).splits["test"].images.astype(int) for side in (32, 8))
    assert small.shape == (2, 8, 8)
    assert small[1, 2, 3] == pytest.approx(whole[1, 8:12, 12:16].mean(), abs=0.51)


def test_fashion_gets_a_border_of_two_pixels(fashion: Path) -> None:
    data = images.load(fashion)
    assert data.sizes() == "train 18, val 2, test 6"
    test = data.splits["test"].images
    assert test.shape == (6, 32, 32)
    assert test[:, :2].max() == test[:, -2:].max() == test[:, :, :2].max() == test[:, :, -2:].max() == 0
    assert test[:, 2:-2, 2:-2].mean() == pytest.approx(127.5, abs=4)  # 4,704 uniform bytes: a standard error of 1.1


@pytest.mark.parametrize(
    ("size", "message"),
    [(3072, "3072 bytes, no multiple of 3073; is it whole"), (0, "0 bytes, no multiple"), (6145, "6145 bytes, no multiple")],
)
def test_a_truncated_batch_is_one_line(tmp_path: Path, size: int, message: str) -> None:
    root = images.smoke_data(tmp_path) / "cifar-10-batches-bin"
    (root / "data_batch_3.bin").write_bytes(bytes(size))
    with pytest.raises(InputError, match=f"data_batch_3.bin: {message}"):
        images.load(tmp_path)


def test_the_pickles_of_the_python_version_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(b"\x80\x04.")
    with pytest.raises(UsageError, match=r"the Python version of CIFAR-10, whose files are pickles and are not read"):
        images.load(tmp_path)


def test_another_data_set_in_the_same_format_is_noticed(tmp_path: Path) -> None:
    root = images.smoke_data(tmp_path) / "cifar-10-batches-bin"
    (root / "data_batch_1.bin").write_bytes(bytes([42]) + bytes(3072))
    with pytest.raises(InputError, match=r"label 42; expected 0 to 9. Is it CIFAR-100"):
        images.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((20, 28, 28)))[:-1], r"15679 bytes after the header; expected \(20, 28, 28\): is the download whole"),
        (idx(np.zeros((20, 40, 40))), "40 x 40 pixels; expected at most 32 x 32"),
        (idx(np.zeros((19, 28, 28))), "19 images in .* and 20 labels"),
        (b"\x00\x00\x0d\x03" + bytes(12), "expected an idx file of bytes with 3 dimension"),
        (gzip.compress(idx(np.zeros((20, 28, 28))))[:20], "gzip data ends or breaks early"),
    ],
)
def test_a_wrong_idx_file_is_one_line(fashion: Path, content: bytes, message: str) -> None:
    (fashion / f"{IDX[0]}.gz").write_bytes(content)
    with pytest.raises(InputError, match=message):
        images.load(fashion)


def test_a_folder_of_something_else_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte.gz: missing; expected data_batch_"):
        images.load(tmp_path)


# Pathfinder


def test_files_are_read_when_a_batch_needs_them(tmp_path: Path) -> None:
    task = pathfinder.build(smoke_recipe("pathfinder"), pathfinder.smoke_data(tmp_path), CPU)
    assert task.data.sizes() == "train 16, val 2, test 2"
    rows, batch = task.data.splits["train"], task.batch(0)
    image = pathfinder.read_image(rows.root / rows.files[5], 8)
    steps = rows.rows(np.array([5]))[0]
    assert steps[0, 9, 0] == pytest.approx((image[1, 1] / 255 - rows.mean) / rows.std, rel=1e-5)
    assert batch.inputs.shape == (4, 64, 1)
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    with pytest.raises(InputError, match=r"cannot be read"):
        task.batch(1)


def test_labels_are_those_of_the_metadata_and_no_image_is_in_two_splits(tmp_path: Path) -> None:
    splits = pathfinder.load(pathfinder.smoke_data(tmp_path), 8).splits
    for rows in splits.values():
        assert [int(Path(file).stem.split("_")[1]) % 2 for file in rows.files] == rows.labels.tolist()
    files = [file for rows in splits.values() for file in rows.files]
    assert len(set(files)) == len(files) == 20


def test_an_array_file_has_the_same_images(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (10, 16, 16), np.uint8), np.arange(10, dtype=np.int8) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    splits = pathfinder.load(tmp_path / "a.npz", 16).splits
    seen = {image.tobytes(): label for rows in splits.values() for image, label in zip(rows.images, rows.labels, strict=True)}
    assert seen == {image.tobytes(): label for image, label in zip(x, y, strict=True)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/0 sample_0.png 0", "line 1 is 'imgs/0 sample_0.png 0'; expected folder, file, number and label"),
        ("imgs/0 sample_0.png 0 7", "expected folder, file, number and label 0 or 1"),
        ("../../etc passwd 0 1", "names '../../etc/passwd', which is outside the data set"),
        ("/etc passwd 0 1", "names '/etc/passwd', which is outside the data set"),
    ],
)
def test_a_wrong_line_of_the_metadata_is_named(tmp_path: Path, line: str, message: str) -> None:
    (pathfinder.smoke_data(tmp_path) / pathfinder.HARD / "metadata" / "0.npy").write_text(line + "\n")
    with pytest.raises(InputError, match=message):
        pathfinder.load(tmp_path, 8)


def test_images_of_another_size_and_halves_of_images_are_named(tmp_path: Path) -> None:
    root = pathfinder.smoke_data(tmp_path)
    with pytest.raises(InputError, match=r"sample_\d+.png: 8 x 8 pixels; expected 32 x 32 \(data.side\)"):
        pathfinder.load(root, 32)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(encode_png(np.zeros((8, 8), np.uint8))[:-20])
    with pytest.raises(InputError, match=r"not a whole 8-bit PNG image .*download it again"):
        pathfinder.load(root, 8)


def test_a_folder_without_metadata_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"metadata: holds no table; expected curv_contour_length_14"):
        pathfinder.load(tmp_path, 32)


@pytest.mark.needs_data
@pytest.mark.parametrize(("name", "side", "count"), [("32_hard_official_1000", 32, 1000), ("128_hard_official_60", 128, 60)])
def test_the_official_images_are_read(data_dir: Path, name: str, side: int, count: int) -> None:
    data = pathfinder.load(data_dir / f"pathfinder{name}.npz", side)
    assert sum(len(rows) for rows in data.splits.values()) == count
    lit = {0: [], 1: []}
    for rows in data.splits.values():
        for image, label in zip(rows.images, rows.labels, strict=True):
            lit[int(label)].append((image > 0).mean())
    # as measured on the generator's images, the same for both labels
    expected = {32: 0.344, 128: 0.137}[side]
    assert all(np.mean(shares) == pytest.approx(expected, abs=0.01) for shares in lit.values())
