"""What every `python -m stages.<name>` shares: its arguments, and one clear line for a mistake.

Expected errors print `error: ...` on stderr and exit with 1, or 2 where the command line itself is wrong.
`PARITY_TRACEBACK=1` shows the traceback instead.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn, get_args

Task = Literal["sft", "pretrain"]
TASKS: tuple[Task, ...] = get_args(Task)


# tokenizers and safetensors (Rust), and torch's zip writer, do not raise OSError.
LIBRARIES_ON_A_FULL_DISK = ("os error 28", "PytorchStreamWriter failed writing", "unexpected pos", "iostream error")


PR_SET_PDEATHSIG = 1


class ParityError(Exception):
    """Something the user can mend: the message says what was found, where, and what to do."""


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_task(arguments: argparse.ArgumentParser) -> None:
    arguments.add_argument("task", choices=TASKS, help="which task to work on")


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when the thread that started it is gone, SIGKILL included."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def explain(error: BaseException) -> str | None:
    """The line a user sees for an expected error; None for a bug, which deserves its traceback."""
    if isinstance(error, ParityError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.strerror:
        hint = {
            errno.ENOSPC: "; free some space and run it again",
            errno.EDQUOT: "; free some space and run it again",
            errno.EACCES: "; allow it or choose another folder",
            errno.EPERM: "; allow it or choose another folder",
            errno.EROFS: "; choose a folder that can be written",
        }.get(error.errno or 0, "")
        # Of two names the second is the one written to.
        return f"{error.filename2 or error.filename or 'writing output'}: {error.strerror}{hint}"
    if isinstance(error, Exception) and any(words in str(error) for words in LIBRARIES_ON_A_FULL_DISK):
        return "writing output: No space left on device; free some space and run it again"
    return None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM, a preemption notice, ends the block as Ctrl-C does, so that what it cleans up is cleaned up."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with its status; what `explain` knows becomes one line on stderr."""
    try:
        with interruptible():
            status = main() or 0
            sys.stdout.flush()
    except BaseException as error:
        line = None if os.environ.get("PARITY_TRACEBACK") else explain(error)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    sys.exit(status)
