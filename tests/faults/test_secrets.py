"""Promise: a token is used where its SDK takes it from, and stands nowhere afterwards: no file, no log, no error."""

import contextlib
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run, stage
from tests.faults.conftest import FILES, MARK, PLANTED, stocked
from tests.platforms.nodus_setup import Emulator
from tests.test_pipeline import edit, restore

PUBLISHED = ("pilot:nodus", "pilot:modal")


def unpacked(path: Path) -> Iterator[bytes]:
    """A file's bytes; where they are packed, also what is in them."""
    content = path.read_bytes()
    yield content
    if "/objects/" in str(path):  # git's own
        with contextlib.suppress(zlib.error):
            yield zlib.decompress(content)
    if content[:4] == b"\x28\xb5\x2f\xfd":
        import zstandard

        yield zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()


def planted(*roots: Path) -> list[str]:
    """Files below `roots` that a planted value, or any other in their place, has got into."""
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [str(path) for path in files if any(MARK.encode() in part for part in unpacked(path)) and not own(path)]


def own(path: Path) -> bool:
    """Whether a file is one of those that the secrets were planted in."""
    return any(str(path).endswith(f"/{name}") for name in FILES) and path.stat().st_mode & 0o777 == 0o600


def said(done: "subprocess.CompletedProcess[str]") -> str:
    assert MARK not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(ran, tmp_path_factory.mktemp("secrets") / "project")


def test_the_search_finds_what_is_planted(tmp_path: Path) -> None:
    run("git", "init", "--quiet", cwd=tmp_path)
    (tmp_path / "leak.txt").write_text(f"x {PLANTED['HF_TOKEN']} y")
    run("git", "add", "-A", cwd=tmp_path)
    found = planted(tmp_path)
    assert len(found) == 2
    assert any("/.git/objects/" in path for path in found)


def test_a_run_leaves_no_token_in_the_project_the_state_or_home(ran: Path, secrets: dict[str, str]) -> None:
    assert "stages.train" in (ran.parent / "said.txt").read_text()
    roots = (ran.parent, Path(os.environ["PARITY_STATE"]), Path(secrets["HOME"]))
    assert planted(*(root for root in roots if any(root.rglob("*")))) == []


def test_comparing_publishing_exporting_and_auditing_tell_no_token(
    project: Path, secrets: dict[str, str], tmp_path: Path
) -> None:
    commands = (
        ("compare", ".", "pilot:modal", "--json", "--html", str(tmp_path / "page.html")),
        ("compare", ".", "--markdown"),
        ("publish", *PUBLISHED, "--out", str(tmp_path / "published")),
        ("campaign", "status"),
        ("campaign", "export", "--out", str(tmp_path / "campaign.json")),
        ("audit", ".", "--all", "--json"),
        ("show",),
        ("cache",),
    )
    for name, *arguments in commands:
        done = stage(name, *arguments, cwd=project, env=secrets)
        assert done.returncode == 0, said(done)
        said(done)
    assert planted(tmp_path, project) == []


@pytest.mark.parametrize("traceback", ["", "1"])
def test_no_error_tells_a_token(project: Path, secrets: dict[str, str], tmp_path: Path, traceback: str) -> None:
    """A refused key, a server or a hub that is away: as a line, and as the traceback that may be asked for."""
    emulator = Emulator(tmp_path / "nodus")
    away = {
        "NODUS_API_URL": "http://127.0.0.1:9",
        "MODAL_SERVER_URL": "http://127.0.0.1:9",
        "PARITY_TRACEBACK": traceback,
    }
    refused = away | {"NODUS_API_URL": str(emulator.environment["NODUS_API_URL"])}
    asked = (
        ("nodus", "train", secrets | refused),
        ("nodus", "train", secrets | away),
        ("modal", "train", secrets | away),
        ("local", "sources", secrets | away),
    )
    try:
        for platform, script, environment in asked:
            if script == "sources":
                edit(project, "params.yaml", "protocol: embedded", "protocol: pilot")
            else:
                edit(project, "params.yaml", "platform: local", f"platform: {platform}")
            done = stage(script, *([] if script == "sources" else ["sft"]), cwd=project, env=environment)
            restore(project)
            assert done.returncode == 1, said(done)
            assert ("Traceback" in said(done)) == bool(traceback)
    finally:
        emulator.stop()
    assert planted(project, Path(os.environ["PARITY_STATE"]), tmp_path) == []


@pytest.mark.faults
@pytest.mark.parametrize("platform", ["nodus", "modal"])
def test_a_rehearsal_leaves_no_token_with_its_emulator_either(
    ran: Path, tmp_path: Path, secrets: dict[str, str], platform: str
) -> None:
    project, state = stocked(ran, tmp_path / "project"), tmp_path / "state"
    arguments = ("-n", platform, "-S", f"platform={platform}", "-S", "rehearse=true", "evaluate@sft")
    said(run("dvc", "exp", "run", *arguments, cwd=project, env=secrets | {"PARITY_STATE": str(state)}))
    assert (state / "rehearsal" / f"{platform}-emulator" / "requests.jsonl").is_file()
    said(stage("compare", platform, "--html", str(tmp_path / "page.html"), cwd=project, env=secrets))
    assert planted(tmp_path, Path(secrets["HOME"])) == []
