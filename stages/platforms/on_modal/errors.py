"""What Modal's SDK raises, as one line that says what to do."""

import contextlib
import errno
from collections.abc import Iterator

from stages.command import ParityError

AGAIN = "Run the same command again to resume from the last checkpoint"


class JobError(ParityError):
    """The job itself ended badly; `outcome` is the word for it in the record of attempts."""

    def __init__(self, outcome: str, message: str):
        super().__init__(message)
        self.outcome = outcome


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unreachable(error: BaseException) -> OSError:
    """No ParityError: the driver then keeps the job's handle, since the job may well run on."""
    text = f"not reached ({first_line(error)}). Check the network and run the same command again: it takes up the job"
    return ConnectionError(errno.ENETUNREACH, text, "Modal")


def refused(error: BaseException) -> ParityError:
    if "Token missing" in str(error):
        return ParityError("no Modal token: run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET")
    return ParityError(
        f"Modal refused the token ({first_line(error)}). Run `modal token new`, "
        "or correct MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
    )


def ended(error: BaseException) -> JobError:
    """A Function call that failed without the Function's own word for it."""
    import modal.exception as modal

    text = first_line(error)
    if isinstance(error, modal.FunctionTimeoutError):
        return JobError("timeout", f"the job ran into modal.timeout_seconds of params.yaml. Raise it; {AGAIN.lower()}")
    if "memory" in text.lower() or "oom" in text.lower().split():
        return JobError(
            "out of memory", f"the job ran out of memory on Modal ({text}). Raise memory_gib of the protocol"
        )
    if isinstance(error, modal.InternalFailure):
        return JobError("lost", f"Modal lost the job's container ({text}). {AGAIN}")
    if isinstance(error, modal.OutputExpiredError):
        return JobError("lost", f"Modal no longer knows the call. {AGAIN}")
    return JobError("failed", f"the job failed on Modal: {text}. {AGAIN}")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn what the SDK raises on the way to Modal into a line; what a call ended with is `ended`'s."""
    try:
        import modal.exception as modal
    except Exception as error:  # the SDK reads and checks its configuration when it is imported
        raise ParityError(f"Modal's SDK did not start: {first_line(error)}. Check ~/.modal.toml") from None
    try:
        yield
    except (modal.AuthError, modal.PermissionDeniedError) as error:
        raise refused(error) from None
    except (modal.ConnectionError, modal.ServiceError, modal.ClientClosed) as error:
        raise unreachable(error) from None
    except modal.Error as error:
        raise ParityError(f"Modal: {first_line(error)}") from None
