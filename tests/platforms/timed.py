"""What a submitting process measures of itself: seconds in a function, and its peak memory."""

import time
from pathlib import Path
from typing import Any


def timed(owner: Any, name: str) -> list[float]:
    """Time a function of a class or module; the list gets the seconds of each call."""
    taken: list[float] = []
    function = getattr(owner, name)

    def wrapped(*arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments)
        finally:
            taken.append(time.monotonic() - began)

    setattr(owner, name, wrapped)
    return taken


def peak_kib() -> int:
    """The most memory that this process has had; `getrusage` would count its parent's before the exec too."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0])
