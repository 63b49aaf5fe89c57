"""Where things lie on the Volume, and what a try leaves there. Read on both sides.

files/<sha256>             every input, model file and output, once, by content
jobs/<id>/job.json         the job
jobs/<id>/attempts/*.json  one per try, in the order of their names
jobs/<id>/out, state       a try's output and checkpoints while it is under way
jobs/<id>/manifest.json    the finished job's output by name, each file's content in files/
hub/                       the hub's own cache: models by revision
"""

from stages.validation import Frozen, Moment

FILES = "files"
HUB = "hub"


class Try(Frozen):
    """One start of the Function for a job; without an outcome it is under way, or ended without a word."""

    call: str
    started_utc: Moment
    ended_utc: Moment | None = None
    outcome: str | None = None
    reason: str | None = None
    cache: str | None = None  # "warm" where the hub's model was on the Volume before, else "cold"


def job_folder(job_id: str) -> str:
    return f"jobs/{job_id}"


def file_path(sha256: str) -> str:
    return f"{FILES}/{sha256}"
