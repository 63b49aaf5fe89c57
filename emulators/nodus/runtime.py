"""The socket by which a container reaches Nodus: here, to commit what it wrote to a volume."""

import os
import re
import shutil
import socketserver
import threading
from pathlib import Path

from emulators.nodus.house import House
from emulators.nodus.store import Object, now


class Runtime:
    def __init__(self, house: House, project: str, mounts: Path):
        self.house, self.project, self.mounts = house, project, mounts
        # A socket's path may have 107 bytes, which a user's folders soon exceed; by way of this process's descriptor
        # any of them is short, and the socket goes with the attempt's own folder.
        self.folder = os.open(mounts.parent, os.O_PATH | os.O_DIRECTORY)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.folder}/api.sock")
        commit = self.commit

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                head = [line.decode() for line in iter(self.rfile.readline, b"\r\n")]
                found = re.match(r"POST /_nodus/v1/volumes/([a-z0-9-]+)/commit ", head[0])
                status = commit(found[1]) if found else "404 Not Found"
                self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

        self.server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def commit(self, volume: str) -> str:
        """Publish what this attempt's mount holds as the volume's next revision."""
        shutil.copytree(self.mounts / volume, self.house.volume(volume), dirs_exist_ok=True)

        def revise(value: Object) -> None:
            value["status"] |= {"revision": value["status"]["revision"] + 1, "lastCommitTime": now()}

        self.house.store.update("Volume", self.project, volume, revise)
        return "200 OK"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.path.unlink(missing_ok=True)
        os.close(self.folder)
