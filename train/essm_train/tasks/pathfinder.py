"""Pathfinder and Path-X of Long Range Arena: are two dots joined by a dashed path? Pixels row by row, 1,024 or 16,384 steps.

Data: lra_release/pathfinder32 or pathfinder128 with curv_contour_length_14/{imgs,metadata} (the hard images, which are Long
Range Arena's task), or the folder curv_contour_length_14 itself; or an npz file with x uint8 [n, side, side] and y. A line
of metadata/<n>.npy, which is text, is: folder, file, number, label, ... Images are read when a batch needs them, so
Path-X's 200,000 are never in memory at once. Cut in 80, 10 and 10 % by image, as Long Range Arena does; the shuffle is
ours.

Run on the npz files of images by the original generator. lra_release could not be reached: the loader of its layout was run
on images that were written in it, and Path-X at full length only for some steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from essm_deploy.errors import InputError, UsageError
from essm_train.settings import CommonSettings
from essm_train.tasks.classification import Classification, Labelled, smaller, three_way, vector_config
from essm_train.tasks.examples import Examples, Index, PixelRows, Rows, as_steps, brightness
from essm_train.tasks.png import encode_png, read_png
from essm_train.tasks.reading import load_arrays, read_text_file

LABELS = ("apart", "joined")
HARD = "curv_contour_length_14"
LAYOUT = f"expected {HARD}/imgs/<n>/*.png and {HARD}/metadata/<n>.npy, or an npz file of x and y"
SAMPLE = 1024  # images whose brightness stands for all
BROKEN = {"imgs/0/sample_172.png"}  # of lra_release's pathfinder32: an empty file


@dataclass(frozen=True)
class Data:
    side: int
    val_samples: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


@dataclass(frozen=True)
class FileRows:
    """Images on disk, decoded when they are asked for."""

    root: Path
    files: list[str]
    labels: npt.NDArray[np.int64]
    side: int
    mean: float
    std: float

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, index: Index) -> Rows:
        images = [read_image(self.root / self.files[int(row)], self.side) for row in index]
        return as_steps(np.stack(images), self.mean, self.std), None

    def steps(self, index: Index) -> int:
        del index
        return self.side**2


def build(recipe: Recipe, data: Path, device: torch.device) -> Classification:
    """The task on these images."""
    side = recipe.data.side
    config = vector_config(recipe, side * side, 1, len(LABELS))
    return Classification("pathfinder", load(data, side), config, recipe, device, recipe.data.val_samples)


def check(recipe: Recipe) -> None:
    """UsageError where the images are too small to be any."""
    if recipe.data.side < 8:
        raise UsageError(f"data.side is {recipe.data.side}; expected 32 (Pathfinder) or 128 (Path-X)")


def smoke(recipe: Recipe) -> Recipe:
    """Images of 8 x 8."""
    small: Recipe = smaller(recipe, side=8)
    return small


def smoke_data(folder: Path) -> Path:
    """Twenty images of noise in the layout of lra_release."""
    root, rng = folder / HARD, np.random.default_rng(0)
    (root / "imgs" / "0").mkdir(parents=True)
    (root / "metadata").mkdir()
    lines = []
    for i in range(20):
        (root / "imgs" / "0" / f"sample_{i}.png").write_bytes(encode_png(rng.integers(0, 256, (8, 8), np.uint8)))
        lines.append(f"imgs/0 sample_{i}.png {i} {i % 2} 0 1.8 6 2.0 5 1.5")
    (root / "metadata" / "0.npy").write_text("\n".join(lines) + "\n")
    return folder


def load(path: Path, side: int) -> Labelled:
    """Either layout. UsageError or InputError where it is neither, or the images are of another size."""
    return _from_npz(path, side) if path.is_file() else _from_folder(path, side)


def _from_npz(path: Path, side: int) -> Labelled:
    arrays = load_arrays(path, ("x", "y"), "x uint8 [n, side, side] and y [n]")
    x, y = arrays["x"], arrays["y"].astype(np.int64)
    if x.dtype != np.uint8 or x.shape != (len(y), side, side) or not set(np.unique(y)) <= {0, 1}:
        raise InputError(
            f"{path}: x is {x.dtype} {list(x.shape)}, y {list(y.shape)}; expected uint8 [n, {side}, {side}] and labels 0 and 1 "
            f"(data.side is {side})"
        )
    images, parts = x.astype(np.uint8, copy=False), three_way(len(y))
    mean, std = brightness(images[parts["train"]])
    splits = {split: PixelRows(images[index], y[index], mean, std) for split, index in parts.items()}
    return _labelled(splits, f"{len(y)} images by the original generator, cut by image.", side, mean, std)


def _from_folder(path: Path, side: int) -> Labelled:
    root = path / HARD if (path / HARD).is_dir() else path
    tables = sorted((root / "metadata").glob("*.npy"), key=lambda file: (len(file.name), file.name))
    if not tables:
        raise UsageError(f"{root / 'metadata'}: holds no table; {LAYOUT}")
    listed = [entry for table in tables for entry in _entries(table) if entry[0] not in BROKEN]
    parts, labels = three_way(len(listed)), np.array([label for _, label in listed], np.int64)
    first = parts["train"][:: max(1, len(parts["train"]) // SAMPLE)][:SAMPLE]
    mean, std = brightness(np.stack([read_image(root / listed[i][0], side) for i in first]))
    splits = {
        split: FileRows(root, [listed[i][0] for i in index], labels[index], side, mean, std) for split, index in parts.items()
    }
    return _labelled(splits, f"{len(listed)} images of Long Range Arena's release, cut by image.", side, mean, std)


def _entries(table: Path) -> list[tuple[str, int]]:
    """(file, label) of each line. A name that would leave the folder is refused."""
    found = []
    for number, line in enumerate(read_text_file(table, "a text table, though its name ends in .npy").splitlines(), start=1):
        words = line.split()
        if len(words) < 4 or words[3] not in ("0", "1"):
            raise InputError(f"{table}: line {number} is {line[:60]!r}; expected folder, file, number and label 0 or 1")
        name = f"{words[0]}/{words[1]}"
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{table}: line {number} names {name!r}, which is outside the data set")
        found.append((name, int(words[3])))
    return found


def read_image(path: Path, side: int) -> npt.NDArray[np.uint8]:
    """A square image of the recipe's size."""
    image = read_png(path)
    if image.shape != (side, side):
        raise InputError(f"{path}: {image.shape[1]} x {image.shape[0]} pixels; expected {side} x {side} (data.side)")
    return image


def _labelled(splits: Mapping[str, Examples], source: str, side: int, mean: float, std: float) -> Labelled:
    return Labelled(splits, LABELS, source, {"preprocessing": {"kind": "pixels", "side": side, "mean": mean, "std": std}})
