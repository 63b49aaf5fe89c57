"""The endpoints that the SDK calls, by method and path."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator

from emulators.nodus.admission import Admission
from emulators.nodus.house import KEY, House
from emulators.nodus.life import TERMINAL
from emulators.nodus.refusal import Refusal
from emulators.nodus.server import BLOCK, CUT, Answer, Request
from emulators.nodus.store import Object, replace, selects

ROOT = r"/apis/nodus\.dev/v1/namespaces/(?P<project>[a-z0-9-]+)"
PLURALS = {"jobs": "Job", "attempts": "Attempt", "images": "Image", "volumes": "Volume"}
PLURAL = rf"/(?P<plural>{'|'.join(PLURALS)})"
NAME = r"/(?P<name>[a-z0-9-]+)"
BOOKMARK = 30.0  # seconds


class Api:
    def __init__(self, house: House):
        self.house, self.admission = house, Admission(house)
        self.routes: list[tuple[str, str, Callable[..., Answer]]] = [
            ("GET", rf"{ROOT}{PLURAL}", self.list),
            ("POST", rf"{ROOT}{PLURAL}", self.create),
            ("GET", rf"{ROOT}{PLURAL}{NAME}", self.get),
            ("PATCH", rf"{ROOT}/jobs{NAME}", self.patch_job),
            ("GET", rf"{ROOT}/jobs{NAME}/log", self.job_log),
            ("GET", rf"{ROOT}/images{NAME}/log", self.image_log),
            ("GET", rf"{ROOT}/jobs{NAME}/outputs/outputs", self.output),
            ("POST", r"/blobs/v1/namespaces/(?P<project>[a-z0-9-]+)/uploads", self.upload),
        ]
        # A signed address carries its own permission, and refuses a second one.
        self.signed: list[tuple[str, str, Callable[..., Answer]]] = [
            ("PUT", r"/signed/blobs/(?P<digest>[0-9a-f]{64})", self.put_blob),
            ("GET", rf"/signed/outputs{NAME}", self.content),
        ]

    def answer(self, request: Request) -> Answer:
        if request.path == "/healthz":
            return Answer(b"ok\n")
        signed = request.path.startswith("/signed/")
        given = request.headers.get("Authorization")
        if signed and given:
            raise Refusal(400, "BadRequest", "a signed address takes no Authorization header")
        if not signed and given != f"Bearer {KEY}":
            raise Refusal(401, "Unauthorized", "the request carries no valid credential")
        for method, pattern, handler in self.signed if signed else self.routes:
            if method == request.method and (found := re.fullmatch(pattern, request.path)):
                return handler(request, **found.groupdict())
        raise Refusal(404, "NotFound", f"{request.method} {request.path} is not emulated")

    # Objects.

    def get(self, request: Request, project: str, plural: str, name: str) -> Answer:
        return Answer(self.house.store.get(PLURALS[plural], project, name))

    def list(self, request: Request, project: str, plural: str) -> Answer:
        kind = PLURALS[plural]
        labels = selects(request.query.get("labelSelector"), lambda o: o["metadata"].get("labels") or {})
        fields = selects(request.query.get("fieldSelector"), lambda o: {"metadata.name": o["metadata"]["name"]})

        def matches(value: Object) -> bool:
            return labels(value) and fields(value)

        if request.query.get("watch") == "true":
            return self.watch(request, kind, matches)
        items, version = self.house.store.select(kind, project, matches)
        return Answer({"kind": f"{kind}List", "metadata": {"resourceVersion": str(version)}, "items": items})

    def watch(self, request: Request, kind: str, matches: Callable[[Object], bool]) -> Answer:
        store = self.house.store
        start = int(request.query.get("resourceVersion") or store.version)
        if start < store.oldest or self.house.faults.take("expire"):
            raise Refusal(410, "Expired", f"resourceVersion {start} is too old")
        closing = self.house.faults.take("close-watch") or {"seconds": 600}
        until = time.monotonic() + closing["seconds"]

        def events(version: int) -> Iterator[bytes | None]:
            bookmark = time.monotonic() + BOOKMARK
            while time.monotonic() < until:
                yield None
                for at, event, value in store.after(version, kind, 0.2):
                    version = at
                    if matches(value):
                        yield json.dumps({"type": event, "object": value}).encode() + b"\n"
                if time.monotonic() > bookmark:
                    bookmark += BOOKMARK
                    mark = {"kind": kind, "metadata": {"resourceVersion": str(version)}}
                    yield json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n"

        return Answer(events(start))

    def create(self, request: Request, project: str, plural: str) -> Answer:
        dry_run = request.query.get("dryRun") == "All"
        return Answer(self.admission.create(PLURALS[plural], project, request.json, dry_run), 201)

    def patch_job(self, request: Request, project: str, name: str) -> Answer:
        """A merge patch of what a client may change: the wanted state, and labels."""
        patch = request.json
        spec, meta = dict(patch.pop("spec", {})), dict(patch.pop("metadata", {}))
        state, labels = spec.pop("state", None), meta.pop("labels", {})
        if patch or spec or meta or state not in (None, "Cancelled"):
            raise Refusal(422, "FieldImmutable", "only cancelling and labels are emulated")

        def change(value: Object) -> None:
            if state and value["status"]["phase"] not in TERMINAL:
                value["spec"]["state"] = state
            value["metadata"]["labels"] = (value["metadata"].get("labels") or {}) | labels

        return Answer(self.house.store.update("Job", project, name, change))

    # Logs.

    def job_log(self, request: Request, project: str, name: str) -> Answer:
        self.house.store.get("Job", project, name)
        cut = self.house.faults.take("cut-logs") or {}
        return Answer(self.lines(project, name, request.query.get("follow") == "true", cut.get("lines")))

    def lines(self, project: str, name: str, follow: bool, most: int | None) -> Iterator[bytes | None]:
        """The log from its first line; where it is followed, until the Job has ended."""
        offset = count = 0
        over = False
        while not over:
            over = self.house.store.get("Job", project, name)["status"]["phase"] in TERMINAL or not follow
            data = b""
            if (path := self.house.log(name)).is_file():
                with path.open("rb") as stream:
                    stream.seek(offset)
                    data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            offset += len(whole)
            for line in whole.splitlines(keepends=True):
                yield line
                count += 1
                if most is not None and count >= most:
                    yield CUT
            yield None
            time.sleep(0.05)

    def image_log(self, request: Request, project: str, name: str) -> Answer:
        return Answer(f"image {name}: recorded, not built (emulator)\n".encode())

    # Content.

    def upload(self, request: Request, project: str) -> Answer:
        digest = request.json["sha256"]
        there = self.house.blob(digest).is_file()
        return Answer({"exists": there} | ({} if there else {"url": f"{self.house.url}/signed/blobs/{digest}"}))

    def put_blob(self, request: Request, digest: str) -> Answer:
        if hashlib.sha256(request.body).hexdigest() != digest:
            raise Refusal(422, "SHA256Mismatch", "the content differs from its address")
        replace(self.house.blob(digest), request.body)
        return Answer({})

    def output(self, request: Request, project: str, name: str) -> Answer:
        outputs = self.house.store.get("Job", project, name)["status"].get("outputs")
        if not outputs or self.house.faults.take("missing"):
            raise Refusal(404, "OutputNotFound", f"Job {name!r} has no such output")
        where = {"Location": f"{self.house.url}/signed/outputs/{name}", "X-Nodus-SHA256": outputs[0]["sha256"]}
        return Answer(b"", 302, where)

    def content(self, request: Request, name: str) -> Answer:
        """An archive from the byte that a Range header asks for; `flip` alters a byte, `drop` breaks it off."""
        size = self.house.archive(name).stat().st_size
        wanted = re.fullmatch(r"bytes=([0-9]+)-", request.headers.get("Range") or "")
        offset = int(wanted[1]) if wanted else 0
        flip = (self.house.faults.take("flip") or {}).get("byte", -1)
        most = (self.house.faults.take("drop") or {}).get("after", size)
        headers = {"Content-Length": str(size - offset)}
        headers |= {"Content-Range": f"bytes {offset}-{size - 1}/{size}"} if wanted else {}
        return Answer(self.blocks(name, offset, flip, most), 206 if wanted else 200, headers)

    def blocks(self, name: str, at: int, flip: int, most: int) -> Iterator[bytes]:
        with self.house.archive(name).open("rb") as stream:
            stream.seek(at)
            while most > 0 and (block := bytearray(stream.read(min(BLOCK, most)))):
                if at <= flip < at + len(block):
                    block[flip - at] ^= 1
                yield bytes(block)
                at, most = at + len(block), most - len(block)
            if most == 0:
                yield CUT
