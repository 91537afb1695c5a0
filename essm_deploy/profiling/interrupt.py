"""Ctrl-C that lets what is being measured come to its end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def finishing(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """A first Ctrl-C in the block raises KeyboardInterrupt when the block has ended; a second one acts at once.

    Nothing changes where Ctrl-C is ignored, or outside the main thread, which alone may handle signals.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, previous)
        with contextlib.suppress(RuntimeError):  # a print was interrupted by this very signal
            say(f"finishing {what}, then stopping; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if pressed:  # whoever pressed it is not interested in trying again
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
    if pressed:
        raise KeyboardInterrupt
