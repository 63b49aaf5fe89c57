"""Promise: a token is used where its SDK takes it from, and stands nowhere afterwards: no file, no log, no error."""

import contextlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run, stage
from tests.faults.conftest import FILES, MARK, PLANTED, bare, data, stocked
from tests.faults.s3 import BUCKET, REGION, ask, server
from tests.platforms.nodus_setup import Emulator
from tests.test_pipeline import commit, edit, restore

PUBLISHED = ("pilot:nodus", "pilot:modal")
READ_FROM = {"MODAL_CONFIG_PATH": ".modal.toml", "NODUS_CONFIG": ".nodus/config", "HF_HOME": ".cache/huggingface"}
# What each SDK signs in with.
SIGNED_IN = """
import botocore.session, huggingface_hub, json, modal.config
from nodus.api._config import resolve
aws, modal = botocore.session.Session().get_credentials(), modal.config.config
found = [modal["token_id"], modal["token_secret"], resolve().api_key, huggingface_hub.get_token()]
print(json.dumps([*found, aws.access_key, aws.secret_key]))
"""


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


@pytest.fixture(params=["environment", "files"])
def user(request: pytest.FixtureRequest, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user who is signed in by variables, or by nothing but the SDKs' own files in HOME."""
    for name in PLANTED:
        monkeypatch.delenv(name, raising=False)
    if request.param == "environment":
        return secrets
    home = Path(secrets["HOME"])
    return {"HOME": str(home)} | {name: str(home / path) for name, path in READ_FROM.items()}


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


def test_the_sdks_sign_in_with_what_is_planted(user: dict[str, str], tmp_path: Path) -> None:
    """Else nothing of it could leak, and the tests below would show nothing."""
    found = json.loads(run(sys.executable, "-c", SIGNED_IN, cwd=tmp_path, env=user).stdout)
    assert all(MARK in value for value in found), found
    assert {"-file" in value for value in found} == {"HF_TOKEN" not in user}


def test_a_run_leaves_no_token_in_the_project_the_state_or_home(ran: Path, secrets: dict[str, str]) -> None:
    assert "stages.train" in (ran.parent / "said.txt").read_text()
    roots = (ran.parent, Path(os.environ["PARITY_STATE"]), Path(secrets["HOME"]))
    assert planted(*(root for root in roots if any(root.rglob("*")))) == []


@pytest.mark.parametrize("user", ["files"], indirect=True)
def test_a_run_of_one_who_is_signed_in_by_files_leaves_no_token_either(
    ran: Path, user: dict[str, str], tmp_path: Path
) -> None:
    project = stocked(ran, tmp_path / "project")
    again = ("check", "sources", "train@sft", "gate@sft", "report")
    environment = user | {"PARITY_STATE": str(tmp_path / "state"), "DVC_SITE_CACHE_DIR": str(tmp_path / "dvc")}
    done = run("dvc", "repro", "--verbose", "--force", "--single-item", *again, cwd=project, env=environment)
    assert said(done).count("Running stage") == len(again)
    assert planted(tmp_path, Path(user["HOME"])) == []


def test_comparing_publishing_exporting_and_auditing_tell_no_token(
    project: Path, user: dict[str, str], tmp_path: Path
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
        done = stage(name, *arguments, cwd=project, env=user)
        assert done.returncode == 0, said(done)
        said(done)
    assert planted(tmp_path, project) == []


@pytest.mark.parametrize(
    ("user", "traceback"),
    [
        ("environment", ""),
        ("files", "1"),
        pytest.param("environment", "1", marks=pytest.mark.faults),
        pytest.param("files", "", marks=pytest.mark.faults),
    ],
    indirect=["user"],
)
def test_no_error_tells_a_token(project: Path, user: dict[str, str], tmp_path: Path, traceback: str) -> None:
    """A refused key, a server or a hub that is away: as a line, and as the traceback that may be asked for."""
    emulator = Emulator(tmp_path / "nodus")
    away = {
        "NODUS_API_URL": "http://127.0.0.1:9",
        "MODAL_SERVER_URL": "http://127.0.0.1:9",
        "PARITY_TRACEBACK": traceback,
    }
    refused = away | {"NODUS_API_URL": str(emulator.environment["NODUS_API_URL"])}
    asked = (
        ("nodus", "train", user | refused),
        ("nodus", "train", user | away),
        ("modal", "train", user | away),
        ("local", "sources", user | away),
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


def test_sharing_over_s3_tells_no_key_refused_or_let_in(ran: Path, user: dict[str, str], tmp_path: Path) -> None:
    """The server knows none of the keys at first, which shows that DVC sends them; then it lets everyone in."""
    pytest.importorskip("dvc_s3", reason="the extra `s3` is not installed")
    project = stocked(ran, tmp_path / "project")
    place = {"AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
    environment = user | place | {"DVC_SITE_CACHE_DIR": str(tmp_path / "dvc")}
    (tmp_path / "s3").mkdir()
    with server(tmp_path / "s3") as s3:
        run("dvc", "remote", "add", "-d", "store", f"s3://{BUCKET}/secrets", cwd=project)
        run("dvc", "remote", "modify", "store", "endpointurl", s3.url, cwd=project)
        commit(project, "Share data in the store")
        teammate = bare(project, tmp_path / "teammate")
        for verb, folder in (("push", project), ("pull", teammate)):
            done = run("dvc", verb, "-vv", cwd=folder, env=environment, check=False)
            assert (done.returncode != 0, "(403)" in said(done)) == (True, True), said(done)
        ask(f"{s3.url}/moto-api/reset-auth", b"1000000")
        said(run("dvc", "push", "-vv", cwd=project, env=environment))
        said(run("dvc", "pull", "-vv", cwd=teammate, env=environment))
    assert data(teammate) == data(project)
    assert planted(tmp_path, Path(user["HOME"])) == []


@pytest.mark.faults
@pytest.mark.parametrize("platform", ["nodus", "modal"])
def test_a_rehearsal_leaves_no_token_with_its_emulator_either(
    ran: Path, tmp_path: Path, user: dict[str, str], platform: str
) -> None:
    project, state = stocked(ran, tmp_path / "project"), tmp_path / "state"
    arguments = ("-n", platform, "-S", f"platform={platform}", "-S", "rehearse=true", "evaluate@sft")
    said(run("dvc", "exp", "run", *arguments, cwd=project, env=user | {"PARITY_STATE": str(state)}))
    assert (state / "rehearsal" / f"{platform}-emulator" / "requests.jsonl").is_file()
    said(stage("compare", platform, "--html", str(tmp_path / "page.html"), cwd=project, env=user))
    assert planted(tmp_path, Path(user["HOME"])) == []
