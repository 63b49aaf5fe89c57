"""A rehearsal: a platform's emulator beside this process, and the environment that leads the SDK to it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stages.command import ParityError, die_with_parent
from stages.jobs import PROJECT
from stages.platforms.common.lock import lock
from stages.platforms.common.process import stop


@contextlib.contextmanager
def rehearsal(name: str, folder: Path, mirror: Path | None) -> Iterator[None]:
    """Run the block against the platform's emulator, whose state lies in `folder`; no real account is ever reached.

    The emulator (`python -m emulators.<name> --folder DIR`) prints one line of JSON when it is ready: the environment
    that points the platform's SDK at it, null for a variable to unset. It is set over whatever the user has.

    Rehearsals on one platform take turns: a second emulator would take up the jobs of the first as its own.
    """
    path, waiting = folder.with_name(f"{folder.name}.lock"), f"another rehearsal on {name} is under way"
    with lock(path, waiting=waiting), emulator(name, folder, mirror):
        yield


@contextlib.contextmanager
def emulator(name: str, folder: Path, mirror: Path | None) -> Iterator[None]:
    """Run the block with the emulator beside it, and the environment pointing at it."""
    command = [sys.executable, "-m", f"emulators.{name}", "--folder", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    if mirror:
        environment["PARITY_MIRROR"] = str(mirror.resolve())
    # In a session of its own: a Ctrl-C at the terminal is for the submit side, which still needs the emulator.
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    before = dict(os.environ)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise ParityError(f"the {name} emulator did not start (exit code {child.wait()})")
        for key, value in json.loads(line)["environment"].items():
            os.environ.pop(key, None)
            os.environ |= {key: value} if value is not None else {}
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        stop(child)
