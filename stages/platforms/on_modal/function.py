"""The job as a Modal Function: this runs in the container, with the worker's code and this folder beside it.

The worker is a process of its own, as on every platform. It reads the job through links into the Volume and writes to
the Volume; each finished checkpoint is committed, so that a preempted Function, which Modal starts again with the same
input, goes on from there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from stages.command import die_with_parent
from stages.evidence.digests import read_json, sha256_file, write_json
from stages.jobs import MANIFEST, PROJECT, Job, read_manifest
from stages.platforms.common.process import stop
from stages.platforms.on_modal.layout import HUB, Try, file_path, job_folder
from stages.validation import validate

# Where the Volume is mounted. An emulator that may not mount says where it put it instead.
VOLUME = Path(os.environ.get("PARITY_VOLUME", "/parity"))
POLL_SECONDS = 0.5
CAP_REACHED = 75  # the exit code of a worker that is stopped for its cost


def commit(volume: Any) -> None:
    """Make the Volume's changes visible outside. Open files, as the worker's are, stop only the reload after that."""
    try:
        volume.commit()
    except RuntimeError as error:
        if "open files" not in str(error):
            raise


def utc() -> str:
    return datetime.now(UTC).isoformat()


class Record:
    """This try's file among the job's attempts."""

    def __init__(self, folder: Path, call: str, cache: str | None):
        self.entry = Try(call=call, started_utc=utc(), cache=cache)
        self.path = folder / "attempts" / f"{self.entry.started_utc.replace(':', '')}.json"
        write_json(self.path, self.entry.model_dump())

    def end(self, outcome: str, reason: str | None = None) -> None:
        ended = {"ended_utc": utc(), "outcome": outcome, "reason": reason}
        write_json(self.path, self.entry.model_copy(update=ended).model_dump())


def cached(job: Job) -> str | None:
    """Whether the hub's model is on the Volume already; None for a job whose model is not the hub's."""
    if job.model.source != "hub":
        return None
    snapshot = VOLUME / HUB / "hub" / f"models--{job.model.id.replace('/', '--')}" / "snapshots" / job.model.revision
    return "warm" if snapshot.is_dir() else "cold"


def seconds_spent(folder: Path, call: str) -> float:
    """Seconds that earlier starts for the same call took, each up to the next: what Modal restarts costs again."""
    tries = [validate(Try, read_json(path), path) for path in sorted((folder / "attempts").glob("*.json"))]
    began = [datetime.fromisoformat(entry.started_utc) for entry in tries if entry.call == call]
    return (datetime.now(UTC) - began[0]).total_seconds() if began else 0.0


def pinned(job: Job) -> dict[str, str]:
    """The job folder's files that come from the Volume: path -> digest."""
    files = {f"inputs/{name}": digest for name, digest in job.inputs.items()}
    if job.model.source == "folder":
        files |= {f"model/{name}": digest for name, digest in job.model.sha256.items()}
    return files


def lay_job(folder: Path, job: Job, place: Path) -> None:
    """A job folder on the container's own disk, its files linked to the Volume's."""
    shutil.rmtree(place, ignore_errors=True)
    for name, digest in pinned(job).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).symlink_to(VOLUME / file_path(digest))
    shutil.copyfile(folder / "job.json", place / "job.json")


def drop_altered(job: Job) -> None:
    """Remove input files whose content is no longer their name, so that the next submission brings them anew."""
    for digest in pinned(job).values():
        path = VOLUME / file_path(digest)
        if path.is_file() and sha256_file(path) != digest:
            path.unlink()


def forward(lines: IO[str], last: deque[str]) -> None:
    for line in lines:
        sys.stderr.write(line)
        sys.stderr.flush()
        last.append(line.strip())


def still_running(worker: "subprocess.Popen[str]") -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(POLL_SECONDS)
    return worker.returncode is None


def run_worker(place: Path, folder: Path, volume: Any, seconds: float) -> tuple[int, str]:
    """Run the worker to its end, `seconds` at most, committing every checkpoint; its exit code and last error line."""
    until = time.monotonic() + seconds
    command = [sys.executable, "-m", "stages.worker", str(place), str(folder / "out"), "--state", str(folder / "state")]
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", "HF_HOME": str(VOLUME / HUB)}
    worker = subprocess.Popen(
        command, env=environment, cwd=PROJECT, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    )
    last: deque[str] = deque(maxlen=1)
    reader = threading.Thread(target=forward, args=(worker.stderr, last), daemon=True)
    reader.start()
    committed: set[Path] = set()
    try:
        while still_running(worker):
            finished = set(folder.glob("state/checkpoints/checkpoint-*/checkpoint.json"))
            if finished - committed:
                commit(volume)
                committed = finished
            if time.monotonic() > until:
                stop(worker)
                return CAP_REACHED, "campaign.cap_usd is used up: Modal had to start the job again. Raise it to resume"
    except BaseException:
        stop(worker)
        raise
    reader.join(timeout=5)
    return worker.returncode, last[0] if last else ""


def publish(folder: Path, job_id: str) -> None:
    """Move a sealed output to where content lies; the manifest comes last."""
    manifest = read_manifest(folder / "out", job_id)
    (VOLUME / file_path("")).mkdir(parents=True, exist_ok=True)
    for name, entry in manifest.files.items():
        (folder / "out" / name).replace(VOLUME / file_path(entry.sha256))
    (folder / "out" / MANIFEST).replace(folder / MANIFEST)
    shutil.rmtree(folder / "out")
    shutil.rmtree(folder / "state", ignore_errors=True)


def work(job_id: str, volume_name: str, seconds: float) -> dict[str, Any]:
    """Do the job, once: where its output is there already, nothing is done again.

    `seconds` are what the cap pays for, over all the times that Modal starts this call.
    """
    import modal
    from modal.exception import InputCancellation

    volume = modal.Volume.from_name(volume_name)
    folder = VOLUME / job_folder(job_id)
    if (folder / MANIFEST).is_file():
        return {"status": 0, "line": ""}
    job = validate(Job, read_json(folder / "job.json"), folder / "job.json")
    call = modal.current_function_call_id() or ""
    seconds -= seconds_spent(folder, call)
    record = Record(folder, call, cached(job))
    commit(volume)
    place = Path(os.environ.get("TMPDIR", "/tmp")) / "parity-job"
    try:
        lay_job(folder, job, place)
        status, line = run_worker(place, folder, volume, seconds)
    except BaseException as error:
        outcome = {KeyboardInterrupt: "preempted", InputCancellation: "cancelled"}.get(type(error), "failed")
        record.end(outcome, type(error).__name__)
        commit(volume)
        raise
    if status:
        drop_altered(job)
        record.end("failed", line or f"exit code {status}")
    else:
        publish(folder, job_id)
        record.end("succeeded")
    commit(volume)
    return {"status": status, "line": line}
