"""The HTTP side: one thread per connection, requests recorded, every unexpected error a 418 and never a 5xx.

The SDK retries a 5xx for five minutes, so a mistake of the emulator's own must look like nothing it knows.
"""

import json
import sys
import time
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from emulators.nodus.house import KEY, House
from emulators.nodus.refusal import Refusal

BLOCK = 1 << 20
CUT = b""  # in a stream: break the connection here


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Refusal(400, "BadRequest", "the body is not JSON") from None


class Answer:
    """JSON, bytes, or a stream of them, which is chunked unless its length is given; None in one is a pause."""

    def __init__(self, body: Any = b"", code: int = 200, headers: dict[str, str] | None = None):
        self.stream: Iterator[bytes | None] | None = body if isinstance(body, Iterator) else None
        self.code, self.headers = code, headers or {}
        if self.stream is None:
            self.data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.headers |= {"Content-Length": str(len(self.data))}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    house: House
    api: Any

    def serve(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, unquote(split.path), dict(parse_qsl(split.query)), self.headers, body)
        if self.away():
            self.close_connection = True
            return
        answer = self.answered(request)
        self.note(request, answer.code)
        try:
            self.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815

    def away(self) -> bool:
        if fault := self.house.faults.take("away"):
            self.house.away_until = time.monotonic() + fault["seconds"]
        return time.monotonic() < self.house.away_until

    def answered(self, request: Request) -> Answer:
        try:
            answer: Answer = self.api.answer(request)
        except Refusal as refusal:
            return Answer(refusal.body, refusal.code)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return Answer({"kind": "Status", "reason": "EmulatorFault", "message": traceback.format_exc()}, 418)
        return answer

    def note(self, request: Request, code: int) -> None:
        try:
            body = json.loads(request.body) if request.body else None
        except ValueError:
            body = f"<{len(request.body)} bytes>"
        allowed = request.headers.get("Authorization") == f"Bearer {KEY}"
        known = {"method": request.method, "path": request.path, "query": request.query}
        self.house.record(known | {"body": body, "authorized": allowed, "code": code})

    def send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        chunked = "Content-Length" not in answer.headers
        for name, value in (answer.headers | ({"Transfer-Encoding": "chunked"} if chunked else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if answer.stream is None:
            self.wfile.write(answer.data)
            return
        for block in answer.stream:
            if block == CUT or time.monotonic() < self.house.away_until:
                self.close_connection = True
                return
            if block is not None:
                self.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n" if chunked else block)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Requests are recorded as JSON; the terminal belongs to the user."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def serve(house: House, api: Any) -> Server:
    """A server on a free loopback port, whose address the house then knows."""
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"house": house, "api": api}))
    house.url = f"http://127.0.0.1:{server.server_address[1]}"
    return server
