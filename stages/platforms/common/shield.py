"""Cleaning up undisturbed."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Let neither Ctrl-C nor SIGTERM break the block off: it is short, and what it ends would cost money."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
