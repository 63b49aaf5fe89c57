"""The Volume from outside: what is there, what goes up, and files that come back in blocks, several at a time."""

import http.client
import io
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stages.command import ParityError
from stages.evidence.bounds import beyond
from stages.evidence.digests import MOST_BYTES, canonical, parse_document
from stages.jobs import MANIFEST, Job
from stages.platforms import now
from stages.platforms.on_modal.errors import first_line, unreachable
from stages.platforms.on_modal.layout import FILES, Try, file_path, job_folder
from stages.validation import aware, validate

BLOCK = 8 << 20  # Modal's own: a URL names a block of this size, counted from the file's start
AHEAD = 4  # blocks under way at once; with their copies they bound the memory
TRIES = 3


class Store:
    def __init__(self, name: str, environment: str | None):
        import modal

        self.volume = modal.Volume.from_name(name, environment_name=environment, create_if_missing=True, version=2)

    def entries(self, folder: str) -> list[Any]:
        """What lies directly in a folder; nothing where there is no such folder."""
        from modal.exception import NotFoundError

        try:
            return list(self.volume.listdir(folder))
        except (NotFoundError, FileNotFoundError):
            return []

    def listing(self, folder: str) -> dict[str, int]:
        """Its files, with their sizes."""
        return {Path(entry.path).name: entry.size for entry in self.entries(folder)}

    def read(self, path: str) -> bytes | None:
        """A document; None where there is none."""
        content = bytearray()
        try:
            for block in self.volume.read_file(path):
                content += block
                if len(content) > MOST_BYTES:
                    raise beyond(path)
        except FileNotFoundError:
            return None
        return bytes(content)

    def put(self, files: Mapping[str, Path | bytes]) -> None:
        with self.volume.batch_upload(force=True) as batch:
            for path, source in files.items():
                batch.put_file(io.BytesIO(source) if isinstance(source, bytes) else source, path)

    def put_job(self, job: Job, folder: Path) -> None:
        """Bring a job folder's files that are not there yet, and its `job.json`."""
        there = self.listing(FILES)
        files: dict[str, Path | bytes] = {f"{job_folder(job.id)}/job.json": folder / "job.json"}
        pins = {folder / "inputs" / name: digest for name, digest in job.inputs.items()}
        if job.model.source == "folder":
            pins |= {folder / "model" / name: digest for name, digest in job.model.sha256.items()}
        for path, digest in pins.items():
            if there.get(digest) != path.stat().st_size:
                files[file_path(digest)] = path.resolve()
        self.put(files)

    def job(self, job_id: str) -> Job | None:
        """The job as it was submitted; None where it never was."""
        path = f"{job_folder(job_id)}/job.json"
        text = self.read(path)
        return None if text is None else validate(Job, parse_document(text, path), path)

    def submitted_utc(self, job_id: str) -> str | None:
        """When the job's `job.json`, which a submission brings last, was put there."""
        times = [entry.mtime for entry in self.entries(job_folder(job_id)) if Path(entry.path).name == "job.json"]
        try:
            return aware(datetime.fromtimestamp(times[0], UTC).isoformat()) if times else None
        except (ArithmeticError, OSError, ValueError) as error:
            raise ParityError(f"Modal: when the job was submitted: {first_line(error)}") from None

    def finished(self, job_id: str) -> bool:
        return MANIFEST in self.listing(job_folder(job_id))

    def manifest(self, job_id: str) -> bytes | None:
        return self.read(f"{job_folder(job_id)}/{MANIFEST}")

    def forget_output(self, job_id: str) -> None:
        self.volume.remove_file(f"{job_folder(job_id)}/{MANIFEST}")

    def tries(self, job_id: str) -> dict[str, Try]:
        """Every try at a job, oldest first, by the path of its record."""
        folder = f"{job_folder(job_id)}/attempts"
        paths = [f"{folder}/{name}" for name in sorted(self.listing(folder))]
        return {path: validate(Try, parse_document(self.read(path) or b"", path), path) for path in paths}

    def settle(self, job_id: str, call: str | None, outcome: str, reason: str) -> None:
        """Write down how the last try of a call ended that could not say so itself."""
        for path, entry in list(self.tries(job_id).items())[-1:]:
            if entry.call == call and entry.outcome in (None, "preempted"):  # so a container calls any interruption
                ended = entry.model_copy(update={"outcome": outcome, "reason": reason, "ended_utc": now()})
                self.put({path: canonical(ended.model_dump())})

    def blocks(self, path: str, size: int, offset: int) -> Iterator[bytes]:
        """A file from `offset` to its `size`, in order, the next blocks under way meanwhile.

        Raises FileNotFoundError for a file that is not there, or not whole, and so will not come whole again.
        """
        if offset >= size:
            return
        found = ask_for_blocks(self.volume, path, offset, size - offset)
        if found.size != size:
            raise FileNotFoundError(f"{path}: {found.size} bytes on the Volume, {size} expected")
        end = found.start + found.len
        ends = [min(end, (offset // BLOCK + number + 1) * BLOCK) for number in range(len(found.get_urls))]
        lengths = [end - start for start, end in zip([offset, *ends], ends, strict=False)]
        coming: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(AHEAD) as pool:
            try:
                for url, length in zip(found.get_urls, lengths, strict=True):
                    coming.append(pool.submit(download, url, length))
                    if len(coming) == AHEAD:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def ask_for_blocks(volume: Any, path: str, start: int, length: int) -> Any:
    """Where the blocks of a part of a file are. The SDK itself only reads whole files, hence its own request here."""
    from modal._utils.async_utils import synchronizer
    from modal.exception import NotFoundError
    from modal_proto import api_pb2

    async def ask() -> Any:
        inner: Any = synchronizer._translate_in(volume)  # type: ignore[no-untyped-call]
        await inner.hydrate()
        request = api_pb2.VolumeGetFile2Request(
            volume_id=inner.object_id, path=path, start=start, len=length, client_pads_blocks=True
        )
        return await inner.client._stub.VolumeGetFile2(request)

    try:
        return synchronizer.create_blocking(ask)()
    except NotFoundError as error:
        raise FileNotFoundError(str(error)) from None


def download(url: str, length: int) -> bytes:
    """One block; zeros at its end may be left out on the way. Raises the driver's ConnectionError after some tries."""
    import ssl

    import certifi

    context = ssl.create_default_context(cafile=certifi.where()) if url.startswith("https:") else None
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=60, context=context) as answer:
                body: bytes = answer.read()
            return body.ljust(length, b"\0")
        except (OSError, http.client.HTTPException) as error:
            if not left:
                raise unreachable(error) from None
            time.sleep(0.5)
    raise AssertionError
