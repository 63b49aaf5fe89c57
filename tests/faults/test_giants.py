"""Promise: what is too large, too deep or too many is refused in a line, within a gigabyte and seconds."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, run

READ = """
import resource, sys
from pathlib import Path
from stages import jobs, validation
from stages.command import run
from stages.comparison.revisions import Folder
from stages.evidence import chain
from stages.evidence.digests import read_rows
from stages.platforms.on_modal.store import Store
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
path = Path(sys.argv[1])
class Volume:
    def read_file(self, path):
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                yield block
def stored(path):
    store = object.__new__(Store)
    store.volume = Volume()
    store.read(str(path))
read = {
    ".yaml": validation.read_yaml,
    ".jsonl": lambda path: list(read_rows(path, {"text": str})),
    ".ledger": lambda path: list(chain.lines(path)),
    ".lock": lambda path: Folder(path.parent).read(path.name),
    ".volume": stored,
}
run(lambda: read.get(path.suffix, lambda path: jobs.read_manifest(path.parent, "0" * 64))(path) and None)
"""
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
ENTRY = '"%d": {"bytes": 1, "sha256": "' + "0" * 64 + '"}'
ENDLESS = 2 << 30  # bytes of a file that takes no space; no reader may hold it
GIANTS: dict[str, tuple[str, Callable[[], str | int], str]] = {
    "entries": ("manifest.json", lambda: manifest(",".join(ENTRY % n for n in range(1_000_000))), "bytes, more than"),
    "files": ("manifest.json", lambda: manifest(",".join(ENTRY % n for n in range(20_000))), "more than 10000 files"),
    "wrong entries": ("manifest.json", lambda: manifest(",".join(f'"{n}": 1' for n in range(1_000_000))), "more than"),
    "problems": ("manifest.json", lambda: manifest(",".join(f'"{n}": 1' for n in range(90_000))), "problems more"),
    "empty lists": ("manifest.json", lambda: "[" + "[]," * 5_000_000 + "[]]", "more than 200000 values"),
    "depth": ("manifest.json", lambda: "[" * 10_000_000, "nested too deeply"),
    "digits": (
        "manifest.json",
        lambda: manifest('"a": {"bytes": ' + "9" * 1_000_000 + "}"),
        "integer string conversion",
    ),
    "size": ("manifest.json", lambda: " " * 100_000_000, "bytes, more than"),
    "laughs": ("params.yaml", lambda: LAUGHS, "more than 200000 values"),
    "yaml": ("params.yaml", lambda: "a: [" + "1, " * 1_000_000 + "1]", "which no file of this project needs"),
    "yaml depth": ("params.yaml", lambda: "[" * 200_000, "not valid YAML"),
    "ledger": ("default.ledger", lambda: ENDLESS, "bytes, which no file of this project needs"),
    "run": ("dvc.lock", lambda: ENDLESS, "bytes, which no file of this project needs"),
    "volume": ("attempt.volume", lambda: ENDLESS, "bytes, which no file of this project needs"),
    "row": ("rows.jsonl", lambda: '{"text": "' + "x" * 100_000_000, "bytes, more than"),
}


def manifest(files: str) -> str:
    return f'{{"version": 1, "job": "{"0" * 64}", "files": {{{files}}}}}'


@pytest.mark.parametrize("name", GIANTS)
def test_a_giant_is_refused_within_a_gigabyte_and_seconds(tmp_path: Path, name: str) -> None:
    file, content, said = GIANTS[name]
    if isinstance(made := content(), int):
        with (tmp_path / file).open("wb") as stream:
            stream.truncate(made)
    else:
        (tmp_path / file).write_text(made)
    done = run(sys.executable, "-c", READ, str(tmp_path / file), cwd=ROOT, check=False)
    assert done.returncode == 1, done.stderr[-500:]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / file}")
    assert said in line
    assert len(line) < 2000
