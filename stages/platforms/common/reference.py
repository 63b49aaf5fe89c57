"""A handle's reference as its own platform reads it: it lay on disk, so it is outside data."""

from typing import TypeVar

from pydantic import BaseModel

from stages.command import ParityError
from stages.platforms import HANDLE, Handle
from stages.validation import validate

M = TypeVar("M", bound=BaseModel)


def refers(model: type[M], handle: Handle) -> M:
    """The reference in a handle; raises ParityError for one that is damaged."""
    try:
        return validate(model, handle.reference, f"{HANDLE} of job {handle.job:.12}", ("reference",))
    except ParityError as error:
        raise damaged(str(error)) from None


def foreign(handle: Handle, name: str) -> ParityError:
    """Of a reference to what is another job's, and so not to be followed, fetched or stopped."""
    return damaged(f"{HANDLE} of job {handle.job:.12}: reference: {name} is not of this job")


def damaged(problem: str) -> ParityError:
    return ParityError(f"{problem}. Run the same command again: it looks for the job by its id")
