"""Promise: on a terminal the worker's steps move a bar, elsewhere they are lines; other lines are always shown."""

import os
import pty
import subprocess
import sys

from tests.conftest import ROOT

LINES = """
from stages.platforms.common.progress import Echo
with Echo() as echo:
    echo("step 1/4 loss 2.5000")
    echo("[a line with brackets]")
    echo("step 4/4 loss 1.2500")
"""


def test_on_a_terminal_steps_move_a_bar() -> None:
    control, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-c", LINES], stdout=terminal, env=environment, cwd=ROOT)
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(control, 1 << 16):
            shown += block
    except OSError:  # the terminal's other end is closed
        pass
    assert child.wait() == 0
    assert b"training loss 1.2500" in shown
    assert b"4/4" in shown
    assert b"[a line with brackets]" in shown
    assert b"step 4/4" not in shown


def test_elsewhere_they_are_lines() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LINES], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines() == ["step 1/4 loss 2.5000", "[a line with brackets]", "step 4/4 loss 1.2500"]
