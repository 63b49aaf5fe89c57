"""A job's call and its app: followed to the end, cancelled, stopped, and seen to be."""

import contextlib
import threading
import time
from typing import Annotated, Any

from pydantic import Field

from stages.command import ParityError
from stages.platforms.common.progress import Echo
from stages.platforms.common.shield import shielded
from stages.platforms.on_modal.errors import AGAIN, JobError, ended, first_line
from stages.validation import Frozen, validate

STOP_SECONDS = 60
LOG_SECONDS = 5  # how long the last lines of a call that has ended may take


class Answer(Frozen):
    """What the Function returns: the worker's exit code, and its last line of error."""

    status: int
    line: Annotated[str, Field(pattern=r"^.{0,10000}$", description="one line")]


def follow(call_id: str | None, *, detach: bool) -> None:
    """Show a call's output until it ends; raises JobError where it did not end well. Ctrl-C cancels it, or detaches."""
    import modal
    from modal.exception import AuthError, ConnectionError, ServiceError

    if call_id is None:
        raise JobError("lost", "the job's output was on the Volume and is gone. Run the same command again")
    call, over = modal.FunctionCall.from_id(call_id), threading.Event()
    lines = threading.Thread(target=echo, args=(call, over), daemon=True)
    lines.start()
    try:
        result = call.get()
    except KeyboardInterrupt:
        if detach:
            over.set()
        else:
            with shielded():
                cancel(call_id)  # which ends the lines as well
        raise
    except (AuthError, ConnectionError, ServiceError):
        raise
    except Exception as error:
        raise ended(error) from None
    finally:
        lines.join(timeout=0 if over.is_set() else LOG_SECONDS)
        over.set()
    answer = answered(result)
    if answer.status:
        line = answer.line.removeprefix("error: ") or f"exit code {answer.status}"
        killed = " (out of memory?)" if answer.status < 0 else ""
        raise JobError("failed", f"the worker failed on Modal{killed}: {line}. {AGAIN}")


def answered(result: object) -> Answer:
    try:
        return validate(Answer, result, "the Function's answer")
    except ParityError as error:
        raise JobError("failed", f"{error}. {AGAIN}") from None


def echo(call: Any, over: threading.Event) -> None:
    """A call's output as lines, until it is over. A lost stream of logs is no lost job."""
    rest = ""
    try:
        with Echo() as show:
            for entry in call.logs.stream():
                *lines, rest = (rest + entry.message).split("\n")
                for line in lines:
                    show(line)
            show(rest)
    except Exception as error:
        over.is_set() or print(
            f"the job's output is no longer shown ({first_line(error)}); the job runs on", flush=True
        )


def cancel(call_id: str | None) -> None:
    import modal
    from modal.exception import NotFoundError

    if call_id:
        with contextlib.suppress(NotFoundError):
            modal.FunctionCall.from_id(call_id).cancel(terminate_containers=True)


def stopped(name: str, app_id: str | None, environment: str | None) -> bool:
    """Whether nothing of the job's app runs."""
    import modal
    from modal.exception import NotFoundError
    from modal.types import AppState

    try:
        app = modal.App.lookup(app_id) if app_id else modal.App.lookup(name, environment_name=environment)
        return bool(app.info(refresh=True).lifecycle.state is AppState.STOPPED)
    except NotFoundError:  # by its name only an app that is deployed is found
        return True


def stop_app(name: str, app_id: str | None, environment: str | None) -> bool:
    """Stop the job's app, and look until nothing of it is left: whether that is so in the end."""
    import modal
    from modal.exception import NotFoundError
    from modal.types import AppState

    try:
        app = modal.App.lookup(app_id) if app_id else modal.App.lookup(name, environment_name=environment)
        if app.info(refresh=True).lifecycle.state not in (AppState.STOPPING, AppState.STOPPED):
            app.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while app.info(refresh=True).lifecycle.state is not AppState.STOPPED:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
    except NotFoundError:  # by its name only an app that is deployed is found
        pass
    return True
