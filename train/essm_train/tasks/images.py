"""sCIFAR-like images of Long Range Arena: ten classes, 32 x 32 grey pixels read row by row, 1,024 steps.

Data: cifar-10-batches-bin, the binary version of CIFAR-10 (Krizhevsky 2009: data_batch_1.bin to data_batch_5.bin,
test_batch.bin; the Python version is pickles, which are not read), or the four idx files of Fashion-MNIST (28 x 28, .gz or
not), with a border of two pixels. Colour becomes the luma of ITU-R BT.601. The last tenth of the training images is the
validation split.

Run on Fashion-MNIST. CIFAR-10 could not be reached: its loader was run on made-up files in its layout only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from essm_deploy.errors import InputError, UsageError
from essm_train.settings import CommonSettings
from essm_train.tasks.classification import SPLITS, Classification, Labelled, smaller, vector_config
from essm_train.tasks.examples import PixelRows, brightness
from essm_train.tasks.reading import read_file, read_text_file

SIDE = 32
TRAIN_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LAYOUT = "expected data_batch_{1..5}.bin and test_batch.bin of cifar-10-batches-bin, or Fashion-MNIST's four idx files"
VALIDATION = 0.1  # of the training images

_RECORD = 1 + 3 * SIDE * SIDE  # a label, then the red, green and blue planes

Images = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Data:
    side: int
    val_samples: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


def build(recipe: Recipe, data: Path, device: torch.device) -> Classification:
    """The task on these images."""
    side = recipe.data.side
    labelled = load(data, side)
    config = vector_config(recipe, side * side, 1, len(labelled.labels))
    return Classification("images", labelled, config, recipe, device, recipe.data.val_samples)


def check(recipe: Recipe) -> None:
    """UsageError where a number makes no sense."""
    if recipe.data.side < 1 or SIDE % recipe.data.side:
        raise UsageError(f"data.side is {recipe.data.side}; expected {SIDE}, or a part of it such as 16 or 8")
    if recipe.data.val_samples < 0:
        raise UsageError(f"data.val_samples is {recipe.data.val_samples}; expected 0 (all) or more")


def smoke(recipe: Recipe) -> Recipe:
    """Images of 8 x 8."""
    small: Recipe = smaller(recipe, side=8)
    return small


def smoke_data(folder: Path) -> Path:
    """Twenty images of noise, two a training file, in the binary layout of CIFAR-10."""
    root, rng = folder / "cifar-10-batches-bin", np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for name in (*TRAIN_BATCHES, "test_batch.bin"):
        records = rng.integers(0, 256, (2, _RECORD), np.uint8)
        records[:, 0] %= 10
        (root / name).write_bytes(records.tobytes())
    (root / "batches.meta.txt").write_text("\n".join(CIFAR) + "\n\n")
    return folder


def load(path: Path, side: int = SIDE) -> Labelled:
    """Either layout; the images stay uint8 in memory. Those of fewer than 32 pixels a side are means of blocks."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such directory; {LAYOUT}")
    root = path / "cifar-10-batches-bin" if (path / "cifar-10-batches-bin").is_dir() else path
    if (root / "test_batch.bin").exists():
        labels, source = _names(root), "CIFAR-10 (Krizhevsky 2009), grey."
        train, test = _cifar(root, TRAIN_BATCHES), _cifar(root, ("test_batch.bin",))
    elif (root / "test_batch").exists() and not _idx_file(root, IDX[0]).exists():
        raise UsageError(f"{root}: holds the Python version of CIFAR-10, whose files are pickles and are not read; {LAYOUT}")
    else:
        labels, source = FASHION, "The idx files of Fashion-MNIST (Xiao et al. 2017, MIT), with a border of two pixels."
        train, test = _idx(root, IDX[0], IDX[1]), _idx(root, IDX[2], IDX[3])
    return _split(_shrunk(train, side), _shrunk(test, side), labels, source)


def _shrunk(images: Images, side: int) -> Images:
    block = SIDE // side
    blocks = images[0].reshape(-1, side, block, side, block)
    return blocks.mean(axis=(2, 4), dtype=np.float32).round().astype(np.uint8), images[1]


def _split(train: Images, test: Images, labels: tuple[str, ...], source: str) -> Labelled:
    side, cut = train[0].shape[1], len(train[1]) - round(VALIDATION * len(train[1]))
    parts = {"train": (train[0][:cut], train[1][:cut]), "val": (train[0][cut:], train[1][cut:]), "test": test}
    mean, std = brightness(parts["train"][0])
    splits = {split: PixelRows(*parts[split], mean, std) for split in SPLITS}
    preprocessing = {"kind": "pixels", "side": side, "mean": mean, "std": std}
    return Labelled(splits, labels, source, {"preprocessing": preprocessing})


def _cifar(root: Path, names: tuple[str, ...]) -> Images:
    images, labels = [], []
    for name in names:
        data = np.frombuffer(read_file(root / name, "a binary batch of CIFAR-10", 2**28), np.uint8)
        if len(data) == 0 or len(data) % _RECORD:
            raise InputError(
                f"{root / name}: {len(data)} bytes, no multiple of {_RECORD}; is it whole, and the binary version? {LAYOUT}"
            )
        records = data.reshape(-1, _RECORD)
        if records[:, 0].max() > 9:
            raise InputError(f"{root / name}: label {records[:, 0].max()}; expected 0 to 9. Is it CIFAR-100? {LAYOUT}")
        planes = records[:, 1:].reshape(-1, 3, SIDE * SIDE).astype(np.float32)
        grey = np.rint(np.einsum("ncp,c->np", planes, np.array([0.299, 0.587, 0.114], np.float32)))
        images.append(grey.astype(np.uint8).reshape(-1, SIDE, SIDE))
        labels.append(records[:, 0].astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def _names(root: Path) -> tuple[str, ...]:
    path = root / "batches.meta.txt"
    found = tuple(read_text_file(path, "ten class names").split()) if path.is_file() else CIFAR
    if len(found) != 10:
        raise InputError(f"{path}: {len(found)} class names; expected 10. Is it CIFAR-100? {LAYOUT}")
    return found


def _idx(root: Path, images: str, labels: str) -> Images:
    pixels, classes = _idx_array(_idx_file(root, images), 3), _idx_array(_idx_file(root, labels), 1)
    if pixels.shape[0] != classes.shape[0]:
        raise InputError(f"{root}: {pixels.shape[0]} images in {images} and {classes.shape[0]} labels in {labels}")
    border = [SIDE - side for side in pixels.shape[1:]]
    if min(border) < 0:
        raise InputError(f"{root / images}: {pixels.shape[1]} x {pixels.shape[2]} pixels; expected at most {SIDE} x {SIDE}")
    if classes.size and classes.max() > 9:
        raise InputError(f"{root / labels}: label {classes.max()}; expected 0 to 9")
    around = [(0, 0), *((extra // 2, extra - extra // 2) for extra in border)]
    return np.pad(pixels, around), classes.astype(np.int64)


def _idx_file(root: Path, name: str) -> Path:
    return root / name if (root / name).exists() else root / f"{name}.gz"


def _idx_array(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """The idx format: two zero bytes, 8 for uint8, the rank, big-endian sizes, the data."""
    if not path.exists():
        raise UsageError(f"{path}: missing; {LAYOUT}")
    data = read_file(path, "an idx file", 2**30)
    start = 4 + 4 * rank
    if data[:4] != bytes([0, 0, 8, rank]) or len(data) < start:
        raise InputError(f"{path}: begins with {data[:4]!r}; expected an idx file of bytes with {rank} dimension(s)")
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank))
    if len(data) - start != int(np.prod(shape, dtype=object)):
        raise InputError(f"{path}: {len(data) - start} bytes after the header; expected {shape}: is the download whole?")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
