"""Where a run trains: the device, its threads, its memory."""

from __future__ import annotations

import ctypes
import os

import torch

from essm_deploy.errors import UnavailableError


def choose_device(name: str | None) -> torch.device:
    """The device of a name, by default a GPU where there is one. UnavailableError where there is none and one was asked for."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UnavailableError("--device cuda: torch sees no NVIDIA GPU here; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def setup_device(device: torch.device, threads: int) -> None:
    """Threads and memory of a CPU run; on a GPU, float32 stays float32."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        return
    torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: mapping activations anew in every step costs a third of the time."""
    m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library: slower, not wrong
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 1 << 26)
