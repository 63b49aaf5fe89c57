"""Bringing a Job's output back: one streamed archive, taken up where it broke, held against the announced digest."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stages.command import ParityError
from stages.platforms.common.archive import Broken, resumed, unpack
from stages.platforms.on_nodus import answers
from stages.platforms.on_nodus.client import AGAIN, credential, explained

OUTPUT = "outputs"  # everything below NODUS_OUTPUT_DIR, which Nodus collects of itself
TIMEOUT_SECONDS = 60.0
LATE_SECONDS = 10.0  # that an output may be listed after its Job has succeeded


def fetch(nodus: Any, name: str, folder: Path) -> None:
    """Put the Job's output into `folder`, whole, or raise ParityError and leave it."""
    with explained(nodus, f"looking for the output of Job {name}"):
        job = answers.job(nodus, name)
    if job is None or job.metadata.namespace is None:
        raise ParityError(f"nodus: Job {name} is gone, and its output with it; {AGAIN} to submit it anew")
    config = nodus.api.default_client().config
    project = quote(job.metadata.namespace)
    url = f"{config.base_url}/apis/nodus.dev/v1/namespaces/{project}/jobs/{quote(name)}/outputs/{OUTPUT}"
    source = Source(name, url, credential(config))
    unpack(f"output of Job {name}", resumed(source.blocks), source.announced(), folder)


class Missing(ParityError):  # noqa: N818
    """No such output, yet or any more."""


class Source:
    """The output's archive at its two addresses: the API's own, and the one signed for some minutes it redirects to.

    The SDK follows the redirect too, but reads the archive into memory whole.
    """

    def __init__(self, name: str, url: str, credential: dict[str, str]):
        self.name, self.url, self.credential = name, url, credential

    def announced(self) -> str:
        """The archive's digest, which stands on the redirect."""
        until, broken = time.monotonic() + LATE_SECONDS, "no answer"
        while True:
            try:
                with self.client() as client:
                    digest: str | None = self.redirect(client).headers.get("x-nodus-sha256")
            except Missing:
                if time.monotonic() > until:
                    raise
            except Broken as error:
                broken = str(error)
            else:
                if digest is None:
                    raise ParityError(f"nodus: the output of Job {self.name} comes without a digest; {AGAIN}")
                return digest
            if time.monotonic() > until:
                raise ParityError(f"nodus: the output of Job {self.name}: {broken}; {AGAIN}")
            time.sleep(0.5)

    def blocks(self, offset: int) -> Iterator[bytes]:
        """The archive from a byte on."""
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        with self.client() as client:
            address = str(self.redirect(client).headers["location"])
            # Without the account's credential: the address carries its own.
            with client.stream("GET", address, headers=headers) as answer:
                if answer.status_code >= 400:
                    raise Broken(f"HTTP {answer.status_code}")
                skip = offset if answer.status_code != 206 else 0  # a server that knows no ranges sends all
                for block in answer.iter_raw():
                    if len(block) > skip:
                        yield block[skip:]
                    skip = max(0, skip - len(block))

    def redirect(self, client: Any) -> Any:
        answer = client.get(self.url, headers=self.credential, follow_redirects=False)
        if answer.status_code in (404, 410):
            raise Missing(
                f"nodus: Job {self.name} has ended well but its output is not there, or is kept no more; "
                "raise repeat in params.yaml to run it anew, which is charged again"
            )
        if answer.status_code in (401, 403):
            raise ParityError(
                f"nodus: the key was refused for the output of Job {self.name}; sign in again, then {AGAIN}"
            )
        if not answer.has_redirect_location:
            raise Broken(f"HTTP {answer.status_code}")
        return answer

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        import httpx

        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
                yield client
        except httpx.HTTPError as error:
            raise Broken(str(error) or type(error).__name__) from None
