"""The submit side as a process that a test can kill:

    python -m tests.platforms.nodus_submit STATE FILES LIGHT [POINT]

At POINT it sends SIGKILL to itself, but "detached" only leaves the Job running on Ctrl-C; without one it prints what it
was delivered, as a line of JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages import platforms
from stages.command import run
from stages.platforms import nodus as module
from stages.platforms.common.progress import Echo
from stages.protocol import read_protocol
from tests.platforms.nodus_setup import ROOT, case, delivered, light_files
from tests.platforms.timed import peak_kib, timed


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> None:
        call(*given, **named)
        die()

    return wrapped


def at_line(text: str) -> None:
    show = Echo.__call__

    def watched(self: Echo, line: str) -> None:
        show(self, line)
        if line.startswith(text):
            die()

    Echo.__call__ = watched  # type: ignore[method-assign]


def at_block(blocks: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*given: Any) -> Any:
        yield next(iter(blocks(*given)))
        die()

    return broken


def arm(point: str) -> None:
    """Have this process die at a point of the submit side's way."""
    if point == "before submission":
        module.Platform.arguments = die  # type: ignore[method-assign]
    elif point == "queued":
        module.Platform.submit = after(module.Platform.submit)  # type: ignore[method-assign]
    elif point == "running":
        at_line("step 2/")
    elif point == "fetching":
        module.outputs.Source.blocks = at_block(module.outputs.Source.blocks)  # type: ignore[method-assign]
    elif point == "after":
        module.Platform.receipt = die  # type: ignore[method-assign, assignment]


def main() -> None:
    state, files, light = (Path(text) for text in sys.argv[1:4])
    plan = json.loads((light / "wanted.json").read_text())
    repeat = plan.pop("repeat")
    module.worker_files = lambda: light_files(light, **plan)  # type: ignore[attr-defined]
    point = sys.argv[4] if len(sys.argv) > 4 else "never"
    arm(point)
    before = peak_kib()
    seconds = {"fetch": timed(module.Platform, "fetch"), "verify": timed(platforms, "verify")}
    parts = case(read_protocol("embedded", ROOT), files, repeat=repeat)
    with delivered(state, parts, detach=point == "detached") as delivery:
        attempts = [one.outcome for one in delivery.receipt.attempts]
        said = {"attempts": attempts, "before_kib": before, "peak_kib": peak_kib()}
        said |= {f"{name}_seconds": taken[0] for name, taken in seconds.items()}
        print(json.dumps(said | {"charge": delivery.receipt.charge_usd, "final": delivery.receipt.final}))


if __name__ == "__main__":
    run(main)
