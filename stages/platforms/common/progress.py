"""A remote worker's output on the user's terminal: lines as they come, its steps as a progress bar."""

import re
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

STEP = re.compile(r"^step (\d+)/(\d+)\b(.*)$")


class Echo:
    """Takes the worker's lines, as a context manager; on a terminal `step 20/160 ...` moves a bar instead."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(file=sys.stdout), disable=not sys.stdout.isatty())
        self.task = self.progress.add_task("training", visible=False, total=None)

    def __enter__(self) -> "Echo":
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def __call__(self, line: str) -> None:
        step = STEP.match(line)
        if step and not self.progress.disable:
            self.progress.update(
                self.task,
                completed=int(step[1]),
                total=int(step[2]),
                description=f"training{step[3]}",
                visible=True,
            )
        elif line:
            self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
