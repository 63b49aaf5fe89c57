"""Promise: what was pushed comes back whole, from a folder as from S3; what is not whole or not allowed is said."""

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run, stage
from tests.faults.conftest import bare, data, objects, stocked
from tests.faults.s3 import BUCKET, Server, server
from tests.test_pipeline import repro

pytest.importorskip("dvc_s3", reason="the extra `s3` is not installed")
STORES = ("folder", "s3")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
MODEL = "data/models/sft/model.safetensors"


class Store:
    """A DVC remote of either kind, seen from outside, and the environment to use it with."""

    def __init__(self, kind: str, folder: Path, s3: Server):
        self.kind, self.folder, self.s3 = kind, folder, s3
        self.prefix = folder.name
        self.environment = s3.environment if kind == "s3" else {}

    @property
    def url(self) -> str:
        return str(self.folder) if self.kind == "folder" else f"s3://{BUCKET}/{self.prefix}"

    def use(self, project: Path, url: str | None = None) -> Path:
        """Make it the project's default remote in .dvc/config, as the README says."""
        run("dvc", "remote", "add", "--force", "-d", "store", url or self.url, cwd=project)
        if self.kind == "s3":
            run("dvc", "remote", "modify", "store", "endpointurl", self.s3.url, cwd=project)
        run("dvc", "remote", "modify", "store", "verify", "true", cwd=project)
        return project

    def share(self, project: Path) -> None:
        """What the README has a user type, the keys of S3 written into .dvc/config.local."""
        self.use(project)
        if self.kind == "s3":
            for name in ("access_key_id", "secret_access_key"):
                run("dvc", "remote", "modify", "--local", "store", name, self.secret(name), cwd=project)
        run("git", "add", ".dvc/config", "dvc.lock", "metrics", cwd=project)
        run("git", "commit", "--quiet", "-m", "Share data in the store", cwd=project)
        run("git", "push", "--quiet", "-u", "origin", "HEAD", cwd=project)
        self.dvc("push", cwd=project, env=dict.fromkeys(KEYS, ""))

    def secret(self, name: str) -> str:
        return self.s3.environment[f"AWS_{name.upper()}"]

    def names(self) -> list[str]:
        """Its objects, as `files/md5/<2>/<30>`."""
        if self.kind == "s3":
            return [name.removeprefix(f"{self.prefix}/") for name in self.s3.names(f"{self.prefix}/")]
        found = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]
        return [name for name in found if not name.endswith(".tmp")]  # which a killed DVC leaves, and never reads

    def sent(self) -> dict[str, Any]:
        """Per object, what sending it again would change: the file that it is, or the number of S3's uploads of it."""
        if self.kind == "s3":
            log = (Path(self.s3.environment["HOME"]) / "moto.log").read_text()
            return Counter(re.findall(rf'"PUT /{BUCKET}/{self.prefix}/(\S+) HTTP', log))
        found = {name: (self.folder / name).stat() for name in self.names()}
        return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}

    def read(self, name: str) -> bytes:
        return self.s3.read(f"{self.prefix}/{name}") if self.kind == "s3" else (self.folder / name).read_bytes()

    def put(self, name: str, content: bytes | None) -> None:
        """Put something else in an object's place; None takes it away."""
        if self.kind == "s3" and content is None:
            self.s3.client().delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")
        elif self.kind == "s3":
            self.s3.put(f"{self.prefix}/{name}", content or b"")
        else:
            (self.folder / name).chmod(0o644)
            (self.folder / name).unlink() if content is None else (self.folder / name).write_bytes(content)

    def dvc(self, *arguments: str, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        return run("dvc", *arguments, cwd=cwd, env=self.environment | options.pop("env", {}), **options)


def object_name(md5: str) -> str:
    return f"files/md5/{md5[:2]}/{md5[2:]}"


def whole(store: Store, project: Path) -> None:
    """The remote holds every object of the project, each what its name says, and nothing else."""
    assert sorted(store.names()) == sorted({object_name(md5) for md5 in objects(project).values()})
    for name in store.names():
        digest = name.removeprefix("files/md5/").replace("/", "").removesuffix(".dir")
        assert hashlib.md5(store.read(name), usedforsecurity=False).hexdigest() == digest, name


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, s3: Server) -> Store:
    return Store(request.param, tmp_path_factory.mktemp(f"store-{request.param}"), s3)


@pytest.fixture(scope="module")
def pushed(ran: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has shared all it has."""
    project = with_origin(stocked(ran, tmp_path_factory.mktemp("pushed") / "project"))
    store.share(project)
    return project


def with_origin(project: Path) -> Path:
    """Give a project a repository of its own to push to, beside it."""
    run("git", "clone", "--quiet", "--bare", str(project), str(origin(project)), cwd=project)
    run("git", "remote", "set-url", "origin", str(origin(project)), cwd=project)
    return project


def origin(project: Path) -> Path:
    return project.with_name("origin.git")


def test_inputs_models_and_predictions_come_back_byte_for_byte_and_nothing_reruns(
    pushed: Path, store: Store, tmp_path: Path
) -> None:
    whole(store, pushed)
    teammate = bare(origin(pushed), tmp_path / "a teammate's clone")
    store.dvc("pull", "data/models/sft", cwd=teammate)
    assert set(data(teammate)) == {path for path in data(pushed) if path.startswith("data/models/sft/")}
    store.dvc("pull", cwd=teammate)
    assert data(teammate) == data(pushed)
    assert "up to date" in run("dvc", "status", cwd=teammate).stdout
    assert repro(teammate) == set()
    assert run("git", "status", "--porcelain", cwd=teammate).stdout == ""
    config = run("git", "show", "HEAD:.dvc/config", cwd=teammate).stdout
    assert f"url = {store.url}\n" in config
    assert "access_key" not in config
    secret = ["git", "grep", "-F", "-e", store.secret("secret_access_key"), "HEAD"]
    assert run(*secret, cwd=teammate, check=False).stdout == ""


def test_a_branch_of_an_experiment_is_in_the_store_and_a_teammate_gets_its_model(
    ran: Path, s3: Server, tmp_path: Path
) -> None:
    project = with_origin(stocked(ran, tmp_path / "project"))
    store = Store("folder", tmp_path / "store", s3)
    store.share(project)
    run("dvc", "exp", "run", "-n", "twelve", "--set-param", "seed=12", "train@sft", cwd=project)
    model = (project / MODEL).read_bytes()
    run("git", "checkout", "--quiet", ".", cwd=project)  # the next experiment begins where this one did
    run("dvc", "checkout", "--quiet", cwd=project)
    run("dvc", "exp", "branch", "twelve", "twelve", cwd=project)
    run("git", "push", "--quiet", "--all", cwd=project)
    run("dvc", "push", "--all-branches", cwd=project)
    teammate = bare(origin(project), tmp_path / "teammate")
    run("git", "switch", "--quiet", "twelve", cwd=teammate)
    run("dvc", "pull", "data/models/sft", cwd=teammate)
    assert (teammate / MODEL).read_bytes() == model != (project / MODEL).read_bytes()


@pytest.mark.parametrize("how", ["flipped", pytest.param("cut", marks=pytest.mark.faults)])
def test_a_damaged_object_is_not_taken_is_named_and_is_pushed_again(
    pushed: Path, store: Store, tmp_path: Path, how: str
) -> None:
    name = object_name(objects(pushed)[MODEL])
    before = store.read(name)
    store.put(name, bytes([before[0] ^ 1]) + before[1:] if how == "flipped" else before[:1000])
    heal(pushed, store, tmp_path, "damaged: its MD5 is ")


@pytest.mark.faults
def test_a_missing_object_is_named_and_is_pushed_again(pushed: Path, store: Store, tmp_path: Path) -> None:
    store.put(object_name(objects(pushed)[MODEL]), None)
    heal(pushed, store, tmp_path, "missing")


def heal(pushed: Path, store: Store, tmp_path: Path, said: str) -> None:
    """A pull fails and says of what; `stages.cache` says of which object; whoever has it pushes it anew."""
    teammate = bare(pushed, tmp_path / "teammate")
    failed = store.dvc("pull", "data/models/sft", cwd=teammate, check=False)
    assert failed.returncode != 0
    assert "failed to pull data" in failed.stderr
    assert not (teammate / MODEL).exists()
    checked = ("--remote", "store")
    found = stage("cache", *checked, cwd=pushed, env=store.environment)
    assert (found.returncode, found.stdout.count(f"{MODEL}: {said}")) == (1, 1), found.stdout + found.stderr
    assert stage("cache", *checked, "--drop", cwd=pushed, env=store.environment).returncode == 0
    store.dvc("push", cwd=pushed)
    whole(store, pushed)
    store.dvc("pull", "data/models/sft", cwd=teammate)
    assert (teammate / MODEL).read_bytes() == (pushed / MODEL).read_bytes()


# `dvc push`, one object at a time, that dies as the Nth is about to come into being: in a folder, or in a bucket.
DYING = """
import os, signal, sys
from s3fs import S3FileSystem
left, store = int(sys.argv[1]), sys.argv[2]
def dying(call):
    def step(first, second, *rest, **options):
        global left
        left -= str(second).startswith(store) or second in ("put_object", "complete_multipart_upload")
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(first, second, *rest, **options)
    return step
os.rename, os.replace = dying(os.rename), dying(os.replace)
S3FileSystem._call_s3, S3FileSystem.call_s3 = dying(S3FileSystem._call_s3), dying(S3FileSystem.call_s3)
from dvc.cli import main
sys.exit(main(["push", "--jobs", "1"]))
"""


def killed_push(store: Store, project: Path, count: int) -> int:
    """SIGKILL a push once `count` objects are there; how many there are then."""
    command = [sys.executable, "-c", DYING, str(count + 1), store.url]
    given: dict[str, Any] = {"env": os.environ | store.environment, "capture_output": True, "check": False}
    done = subprocess.run(command, cwd=project, **given)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return len(store.names())


KILLS = [("s3", 3), *((kind, n) for n in (1, 3, 8, 14, 20, 26) for kind in STORES if (kind, n) != ("s3", 3))]


@pytest.mark.parametrize(
    ("kind", "count"), [KILLS[0], *(pytest.param(*point, marks=pytest.mark.faults) for point in KILLS[1:])]
)
def test_a_push_that_was_killed_is_completed_by_the_next_one(
    ran: Path, s3: Server, kind: str, count: int, tmp_path: Path
) -> None:
    project = stocked(ran, tmp_path / "project")
    store = Store(kind, tmp_path / f"{kind}-{count}-{os.getpid()}", s3)
    store.use(project)
    assert killed_push(store, project, count) == count < len(set(objects(project).values()))
    before_the_next = store.sent()
    assert len(before_the_next) == count
    store.dvc("push", cwd=project)
    whole(store, project)
    assert before_the_next.items() <= store.sent().items()  # none of them was sent again
    shutil.rmtree(project / ".dvc/cache")
    before = data(project)
    shutil.rmtree(project / "data")
    store.dvc("pull", cwd=project)
    assert data(project) == before


WRONG = {
    "no credentials": ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, None, "Unable to locate credentials"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, None, "(403)"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "a wrong secret"}, None, "(403)"),
    "missing bucket": ({}, "s3://no-such-bucket/x", "The specified bucket does not exist"),
}
# The line that DVC puts after the one that says what is wrong.
AFTER = r"Having any troubles\? .*|ERROR: failed to pull data from the cloud - \d+ files failed to download"
REFUSALS = [("wrong secret", "push"), ("missing bucket", "push")]
REFUSALS += [(name, verb) for name in WRONG for verb in ("push", "pull") if (name, verb) not in REFUSALS]


@pytest.mark.parametrize(
    ("name", "verb"),
    [pytest.param(*point, marks=pytest.mark.faults if n > 1 else []) for n, point in enumerate(REFUSALS)],
)
def test_wrong_credentials_and_a_missing_bucket_are_said_in_a_line(
    ran: Path, s3: Server, tmp_path: Path, name: str, verb: str
) -> None:
    """One line that names it and one that is always DVC's; S3 does not say which of key and secret is wrong."""
    environment, url, said = WRONG[name]
    store = Store("s3", tmp_path / "refused", s3)
    project = (stocked if verb == "push" else bare)(ran, tmp_path / "project")
    store.use(project, url)
    done = store.dvc(verb, cwd=project, env=environment, check=False)
    assert done.returncode != 0
    error, after = filter(None, done.stderr.splitlines())
    assert re.match(f"ERROR: (unexpected error|failed to connect to s3 .*) - .*{re.escape(said)}", error), done.stderr
    assert re.fullmatch(AFTER, after), done.stderr
    assert done.stdout == ""
    assert "a wrong secret" not in done.stderr


NOWHERE = {
    "missing bucket": ("s3://no-such-bucket/x", "the remote store has nothing of what dvc.lock names"),
    "unmounted folder": ("/mnt/not-mounted/parity", "the remote store has nothing of what dvc.lock names"),
    "wrong secret": (None, "PermissionError"),
    "no plugin": ("gs://bucket/x", "remote store: gs is supported, but requires 'dvc-gs' to be installed"),
}


@pytest.mark.parametrize("drop", [(), ("--drop",)], ids=["", "drop"])
@pytest.mark.parametrize("name", NOWHERE)
def test_a_remote_that_cannot_be_looked_at_is_said_in_a_line(
    name: str, drop: tuple[str, ...], ran: Path, s3: Server, tmp_path: Path
) -> None:
    if name == "no plugin" and importlib.util.find_spec("dvc_gs"):
        pytest.skip("the plugin dvc-gs is installed here")
    url, said = NOWHERE[name]
    store = Store("folder" if name == "unmounted folder" else "s3", tmp_path / "nowhere", s3)
    project = bare(ran, tmp_path / "project")
    store.use(project, url)
    environment = store.environment | (WRONG[name][0] if name in WRONG else {})
    done = stage("cache", "--remote", "store", *drop, cwd=project, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
