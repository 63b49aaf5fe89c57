"""Promise: whatever stands in a file that comes from outside, our own error is all that comes out, and soon."""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from stages import audit, evaluate, gate, jobs, platforms, show
from stages.command import TASKS, ParityError
from stages.comparison import compare, page, publication
from stages.comparison.audited import Audited
from stages.comparison.execution import record
from stages.comparison.revisions import Folder
from stages.comparison.runs import Reader
from stages.evidence import ledger
from stages.evidence.digests import canonical, read_rows, write_json
from stages.platforms import local
from stages.protocol import Campaign, Protocol, read_params, read_protocol
from stages.training.rows import tokenize
from stages.training.trainer import MARKER, Checkpoint, Totals, read_checkpoint
from stages.worker import load_model
from tests.comparison.build import Builder, lock, repository
from tests.conftest import ROOT, run, tiny_architecture
from tests.faults.hostile import hostile

# The same documents every time; what fails is shown as it was found.
FIXED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SAMPLE, WHOLE = 8, 150  # documents per file
BUDGET = Campaign(name="hostile", authorization_usd="9.00", cap_usd="1.00", reserve_usd="0.00")
CONTEXT = platforms.Context(None, Decimal(1))


def lay(root: Path, embedded: Protocol, tiny_model: Path) -> None:
    """A project with one valid file of every kind that is read."""
    Builder(root, platform="nodus", charge="0.10").write()
    names = {"job": "a" * 64, "platform": "nodus", "task": "sft", "stage": "train"}
    for state in (None, root / "state"):
        attempt = ledger.reserve(BUDGET, **names, amount=Decimal(1), state=state)
        ledger.settle(BUDGET.name, attempt, role="failed", charge_usd=None, final=False, state=state)
    write_json(root / "metrics/campaign.json", ledger.account(BUDGET).model_dump())
    lock(root)
    rows = root / "sft-test.jsonl"
    rows.write_text('{"completion": " positive", "prompt": "fine"}\n' * 3)
    config = json.loads((tiny_model / "config.json").read_text())
    architecture = tiny_architecture(config["vocab_size"])
    tiny = embedded.model_copy(update={"model": embedded.model.model_copy(update={"architecture": architecture})})
    job = jobs.build(tiny, "sft", inputs=[rows], model=tiny_model)
    jobs.write_job(job, root / "job", [rows], tiny_model)
    (root / "out").mkdir()
    result = {"version": 1, "job": "0" * 64, "device": "cpu", "environment": {}, "metrics": {"accuracy": 0.5}}
    times = {"started_utc": platforms.now(), "finished_utc": platforms.now(), "worker_seconds": 1.5}
    write_json(root / "out/result.json", result | times)
    jobs.write_manifest(root / "out", "0" * 64)
    handle = platforms.Handle(version=1, platform="local", job="a" * 64, submitted_utc=platforms.now(), reference={})
    write_json(root / "flight/handle.json", handle.model_dump())
    platforms.first_verified(handle, root / "flight", False)
    events = ({"event": "started"}, {"event": "ended", "status": 0})
    lines = [canonical({"at": platforms.now(), **event}) + b"\n" for event in events]
    (root / "flight/attempts.jsonl").write_bytes(b"".join(lines))
    shutil.copytree(tiny_model, root / "model")
    totals = Totals(seconds=1.5, loss_sum=2.5, loss_since_log=[0.5], last_logged_step=2, tokens=9, metrics={"a": [1.0]})
    marker = Checkpoint(version=1, job="a" * 64, step=3, files={}, totals=totals)
    write_json(root / "checkpoint-3" / MARKER, marker.model_dump())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, embedded: Protocol, tiny_model: Path) -> Path:
    root = repository(tmp_path_factory.mktemp("hostile") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARITY_STATE", str(tmp_path_factory.mktemp("ledger")))
        lay(root, embedded, tiny_model)
    Builder(repository(root / "other"), platform="modal", charge="0.20").write()
    return root


def compared(root: Path) -> None:
    """All that a comparison, a page, an audit and a publication make of a run."""
    runs = [Reader(name, Folder(folder)).run() for name, folder in (("a", root), ("b", root / "other"))]
    for chosen in (runs, runs[:1]):
        comparison = compare.build(chosen)
        json.dumps(compare.document(comparison), allow_nan=False)
        page.write(comparison, root / "page.html")
    for line in audit.checked(Audited(".", Folder(root))):
        str(line)
    subject, other = publication.two_sides(runs)
    for name, made in (
        ("results", publication.results(subject, other, None)),
        ("execution-record", record(subject, other)),
    ):
        publication.validated(name, made)


def parameters(root: Path) -> None:
    """Params, the chosen protocol, and every platform's section."""
    params, sections = read_params(root)
    read_protocol(params.protocol, root)
    for name in platforms.names():
        platforms.read_settings(name, sections, root / "params.yaml")


def scored(root: Path) -> None:
    json.dumps(jobs.read_job(root / "job").id)


def delivered(root: Path) -> None:
    jobs.verify(root / "out", "0" * 64)
    jobs.read_result(root / "out")


def flown(root: Path) -> None:
    handle = platforms.read_handle(root / "flight/handle.json")
    platforms.first_verified(handle, root / "flight", False)
    local.Platform(local.Settings(), CONTEXT).receipt(handle, root / "flight")


def spent(root: Path) -> None:
    ledger.totals(BUDGET, ledger.entries(BUDGET.name, root / "state"))


def shown(root: Path) -> None:
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()):
        for task in TASKS:
            gate.judge(read_protocol("embedded"), task)
        show.build()
        evaluate.check_model("sft")


def tokenized(root: Path) -> None:
    tokenize([{"text": "a fine film"}], root / "model", 16, Path("rows"))


def loaded(root: Path) -> None:
    load_model(jobs.read_job(root / "job"), root / "model", "float32", "cpu")


def resumed(root: Path) -> None:
    read_checkpoint(root / "checkpoint-3", "a" * 64)


RUN = (compared, shown)
TARGETS = {
    "params.yaml": (parameters,),
    "protocols/embedded.yaml": (parameters, compared),
    "sft-test.jsonl": (lambda root: list(read_rows(root / "sft-test.jsonl", jobs.ROW_KEYS["sft"])),),
    "job/job.json": (scored,),
    "out/manifest.json": (delivered,),
    "out/result.json": (delivered,),
    "flight/handle.json": (flown,),
    "flight/attempts.jsonl": (flown,),
    "flight/delivered.json": (flown,),
    "state/campaigns/hostile.jsonl": (spent,),
    "checkpoint-3/checkpoint.json": (resumed,),
    "metrics/campaign.json": RUN,
    **{f"metrics/{task}/{name}.json": RUN for task in TASKS for name in ("baseline", "train", "evaluate", "gate")},
    **{f"metrics/{task}/evidence/{name}.json": RUN for task in TASKS for name in ("baseline", "train", "evaluate")},
    "metrics/sft/loss.csv": RUN,
    "data/predictions/sft/evaluate.jsonl": RUN,
    "data/predictions/pretrain/evaluate.jsonl": RUN,
    "dvc.lock": RUN,
    "listing": RUN,
    "reference/SHA256SUMS": RUN,
    "model/config.json": (loaded,),
    "model/tokenizer_config.json": (tokenized, loaded),
    "model/tokenizer.json": (tokenized, loaded),
    "model/generation_config.json": (loaded,),
    "model/model.safetensors": (loaded,),
}
KINDS = {".json": "json", ".yaml": "yaml", ".lock": "yaml", ".jsonl": "jsonl"}


def path_of(root: Path, name: str) -> Path:
    return root / name if name != "listing" else next((root / ".dvc/cache").rglob("*.dir"))


@pytest.mark.parametrize("name", TARGETS)
def test_every_reader_takes_a_valid_file(world: Path, name: str) -> None:
    assert path_of(world, name).is_file()
    for read in TARGETS[name]:
        read(world)


@pytest.mark.parametrize("tries", [SAMPLE, pytest.param(WHOLE, marks=pytest.mark.faults)])
@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_error_comes_out_of_a_reader(
    world: Path, name: str, tries: int, record_property: Callable[[str, object], None]
) -> None:
    path = path_of(world, name)
    valid, tried = path.read_bytes(), 0

    @settings(FIXED, max_examples=tries)
    @given(hostile(valid, "json" if name == "listing" else KINDS.get(path.suffix, "")))
    def attack(content: bytes) -> None:
        nonlocal tried
        tried += 1
        path.write_bytes(content)
        for read in TARGETS[name]:
            try:
                read(world)
            except ParityError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert len(str(error)) < 2000  # noqa: PT017

    try:
        attack()
    finally:
        path.write_bytes(valid)
        record_property("tried", tried)


READ = """
import resource, sys
from pathlib import Path
from stages import jobs, validation
from stages.command import run
from stages.evidence.digests import read_rows
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
path = Path(sys.argv[1])
read = {".yaml": validation.read_yaml, ".jsonl": lambda path: list(read_rows(path, {"text": str}))}
run(lambda: read.get(path.suffix, lambda path: jobs.read_manifest(path.parent, "0" * 64))(path) and None)
"""
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
ENTRY = '"%d": {"bytes": 1, "sha256": "' + "0" * 64 + '"}'
GIANTS = {
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
    "row": ("rows.jsonl", lambda: '{"text": "' + "x" * 100_000_000, "bytes, more than"),
}


def manifest(files: str) -> str:
    return f'{{"version": 1, "job": "{"0" * 64}", "files": {{{files}}}}}'


@pytest.mark.parametrize("name", GIANTS)
def test_a_giant_is_refused_within_a_gigabyte_and_seconds(tmp_path: Path, name: str) -> None:
    file, content, said = GIANTS[name]
    (tmp_path / file).write_text(content())
    done = run(sys.executable, "-c", READ, str(tmp_path / file), cwd=ROOT, check=False)
    assert done.returncode == 1, done.stderr[-500:]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / file}")
    assert said in line
    assert len(line) < 2000
