"""Files of a run by name, without touching the working tree.

A name is a git revision, a DVC experiment, `.` for the workspace, or `pilot:nodus` and `pilot:modal` for the published
runs, which lie in `reference/`.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple, Protocol

from stages.command import ParityError
from stages.evidence.bounds import beyond, read_bytes
from stages.evidence.digests import BLOCK, MOST_BYTES
from stages.jobs import PROJECT

WORKSPACE = "."
REFERENCE = PROJECT / "reference"
PUBLISHED = "pilot:"
EXPERIMENTS = "refs/exps"


class Files(Protocol):
    """The project's files as they were at one run; paths are relative to the project."""

    def read(self, path: str) -> bytes | None:
        """The bytes at `path`; None where there is no such file."""

    def names(self, *under: str) -> list[str]:
        """Paths of all files at or below the given ones."""


class Folder(NamedTuple):
    root: Path

    def read(self, path: str) -> bytes | None:
        found = self.root / path
        return read_bytes(found) if found.is_file() else None

    def names(self, *under: str) -> list[str]:
        roots = [self.root / path for path in under]
        found = {file for root in roots for file in [root, *root.rglob("*")] if file.is_file()}
        return sorted(str(file.relative_to(self.root)) for file in found)


class Published(NamedTuple):
    """One of the published runs; what both share lies beside them, their protocol in the project."""

    platform: str

    def read(self, path: str) -> bytes | None:
        shared, inner = REFERENCE / "pilot", path.removeprefix("metrics/")
        if inner != path:
            candidates = [shared / self.platform / inner, shared / inner]
        else:
            candidates = [PROJECT / path] if path.startswith(("protocols/", "reference/")) else []
        return next((read_bytes(found) for found in candidates if found.is_file()), None)

    def names(self, *under: str) -> list[str]:
        return Folder(PROJECT).names(*under)


class Objects:
    """One `git cat-file --batch` for all revisions: a thousand files take a fraction of a second."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Objects":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()

    def read(self, name: str) -> bytes | None:
        if self.process is None:
            command = ["git", "cat-file", "--batch"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(name.encode() + b"\n")
        self.process.stdin.flush()
        header = self.process.stdout.readline().split()
        if header[-1] in (b"missing", b"ambiguous"):
            return None
        if (size := int(header[2])) > MOST_BYTES:
            self.pass_over(size + 1)
            raise beyond(name)
        content = self.process.stdout.read(size + 1)[:-1]
        return content if header[1] == b"blob" else None

    def pass_over(self, size: int) -> None:
        """Read on to the next answer, which another file of the run may be read from."""
        assert self.process is not None
        assert self.process.stdout is not None
        while size and (block := self.process.stdout.read(min(size, BLOCK))):
            size -= len(block)


class Revision(NamedTuple):
    commit: str
    prefix: str  # the project's folder inside the repository
    objects: Objects

    def read(self, path: str) -> bytes | None:
        return self.objects.read(f"{self.commit}:{self.prefix}{path}")

    def names(self, *under: str) -> list[str]:
        return git("ls-tree", "-r", "--name-only", self.commit, "--", *under).splitlines()


def git(*arguments: str) -> str:
    """What git prints; raises ParityError with git's own words."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParityError("git: not found; it is needed to read revisions") from None
    if answer.returncode:
        raise ParityError(f"git {arguments[0]}: {answer.stderr.strip().splitlines()[-1:] or ['failed']}")
    return answer.stdout.strip()


def experiments() -> dict[str, list[str]]:
    """Name -> commits of the DVC experiments here; one name may stand below several baselines."""
    found: dict[str, list[str]] = {}
    for line in git("for-each-ref", "--format=%(objectname) %(refname)", EXPERIMENTS).splitlines():
        commit, ref = line.split(" ", 1)
        parts = ref.split("/")
        if len(parts) == 5:  # refs/exps/<2>/<38>/<name>
            found.setdefault(parts[4], []).append(commit)
    return found


def commits(names: list[str]) -> dict[str, str]:
    """The commit of each name; raises ParityError for one that is no revision or an ambiguous experiment."""
    known: dict[str, list[str]] | None = None
    found = {}
    for name in names:
        query = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            found[name] = answer.stdout.strip()
            continue
        known = experiments() if known is None else known
        candidates = known.get(name, [])
        if len(candidates) != 1:
            kinds = "a git revision, a DVC experiment, '.', pilot:nodus or pilot:modal"
            what = (
                f"an experiment of {len(candidates)} baselines; give its commit" if candidates else f"none of {kinds}"
            )
            raise ParityError(f"{name}: {what}")
        found[name] = candidates[0]
    return found


def locate(names: list[str], objects: Objects) -> dict[str, Files]:
    """Where the files of each name are."""
    ours = [name for name in names if name != WORKSPACE and not name.startswith(PUBLISHED)]
    resolved = commits(ours) if ours else {}
    prefix = git("rev-parse", "--show-prefix") if ours else ""
    return {name: place(name, resolved, prefix, objects) for name in names}


def place(name: str, resolved: dict[str, str], prefix: str, objects: Objects) -> Files:
    if name == WORKSPACE:
        return Folder(Path())
    if name.startswith(PUBLISHED):
        platform = name.removeprefix(PUBLISHED)
        folder = REFERENCE / "pilot" / platform
        if not platform.isidentifier() or not folder.is_dir():
            there = sorted(f"{PUBLISHED}{path.name}" for path in (REFERENCE / "pilot").glob("*/"))
            raise ParityError(f"{name}: no such published run; there are {', '.join(there) or 'none'}")
        return Published(platform)
    return Revision(resolved[name], prefix, objects)
