"""Everything that reads what comes from outside, by the file it reads; and a project with a valid one of each."""

import contextlib
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages import audit, cache, evaluate, gate, jobs, platforms, publish, show
from stages.command import TASKS, ParityError
from stages.comparison import artifacts, checks, compare, page, publication
from stages.comparison.audited import Audited
from stages.comparison.execution import record
from stages.comparison.revisions import Folder
from stages.comparison.runs import Reader, Run
from stages.corpora.hub import check_snapshot
from stages.corpora.rows import SFT_COLUMNS, read_columns
from stages.corpora.select import check_label
from stages.corpora.sources import describe_files
from stages.evidence import ledger
from stages.evidence.digests import canonical, read_rows, sha256_file, write_json
from stages.platforms import local
from stages.protocol import Campaign, Protocol, read_params, read_protocol
from stages.training.rows import tokenize
from stages.training.trainer import MARKER, NEEDED, Checkpoint, Totals, kept, read_checkpoint
from stages.worker import load_model
from tests.comparison.build import Builder, lock
from tests.conftest import tiny_architecture
from tests.platforms import answers

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
    (root / "checkpoint-3").mkdir()
    for name in NEEDED:
        (root / "checkpoint-3" / name).write_bytes(name.encode())
    files = {name: kept(root / "checkpoint-3" / name) for name in NEEDED}
    marker = Checkpoint(version=1, job="a" * 64, step=3, files=files, totals=totals)
    write_json(root / "checkpoint-3" / MARKER, marker.model_dump())
    corpus = root / "data/raw/corpus/train.parquet"
    corpus.parent.mkdir(parents=True)
    pq.write_table(
        pa.table({"sentence": [f"film {n}" for n in range(40)], "label": [n % 2 for n in range(40)]}), corpus
    )
    write_json(root / "metrics/sources.json", {"corpus": describe_files(root / "data/raw", [corpus])})
    digests = [f"{sha256_file(path)}  {path.name}\n" for path in (root / "reference").glob("*.json")]
    (root / "reference/SHA256SUMS").write_text("".join(digests) or f"{'0' * 64}  pilot/none.json\n")
    answers.lay(root)


def two_runs(root: Path) -> list[Run]:
    return [Reader(name, Folder(folder)).run() for name, folder in (("a", root), ("b", root / "other"))]


def compared(root: Path) -> None:
    """All that a comparison, a page, an audit and a publication make of a run."""
    runs = two_runs(root)
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


def locked(root: Path) -> None:
    """`dvc.lock` and the lists of folders as `stages.cache` reads them, with nothing that forgives."""
    with contextlib.chdir(root):
        artifacts.locked(Folder(root))
        for listing in (root / ".dvc/cache").rglob("*.dir"):
            artifacts.listed(listing.read_bytes(), listing.name)
        list(cache.faults(cache.local(), copies=True))


def audited(root: Path) -> None:
    """Checks of an audit by themselves: `audit.checked` would make a difference of whatever came out."""
    with contextlib.chdir(root):
        run = Audited(".", Folder(root))
        for check in (checks.check_lock, checks.check_cache, checks.check_metrics, checks.check_reference):
            list(check(run))


def taken(root: Path) -> None:
    with contextlib.chdir(root):
        check_snapshot("corpus")


def selected(root: Path) -> None:
    rows = read_columns([root / "data/raw/corpus/train.parquet"], SFT_COLUMNS)
    for sentence, label in rows:
        check_label((sentence, label), 2, "row")


def published(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "documents", lambda *_: publish.of_runs(two_runs(root)))
        for line in audit.check_publication([], root / "published", None):
            str(line)


def told(root: Path) -> None:
    """The problems of a run, which a comparison shows and goes on, as an error."""
    with contextlib.chdir(root):
        for problem in Reader("a", Folder(root)).run().problems:
            raise ParityError(problem)
        run = Audited(".", Folder(root))
        assert run.metrics
        assert run.evidence
        for line in run.broken:
            raise ParityError(f"{line.what}: {line.recomputed}")


def follows_nodus(root: Path) -> None:
    answers.follows(root, "nodus")


def follows_modal(root: Path) -> None:
    answers.follows(root, "modal")


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
    "data/predictions/sft/evaluate.jsonl": (*RUN, audited),
    "data/predictions/pretrain/evaluate.jsonl": (*RUN, audited),
    "dvc.lock": (*RUN, locked, audited),
    "listing": (*RUN, locked, audited),
    "reference/SHA256SUMS": (*RUN, audited),
    "metrics/sources.json": (taken,),
    "data/raw/corpus/train.parquet": (selected,),
    "published/results.json": (published,),
    "published/execution-record.json": (published,),
    "nodus/handle.json": (follows_nodus,),
    "modal/handle.json": (follows_modal,),
    answers.NODUS: (follows_nodus, answers.asks_nodus),
    answers.MODAL: (follows_modal, answers.bills_modal),
    answers.ENDED: (answers.ends_modal,),
    "try": (follows_modal, answers.reads_volume),
    "submitted": (follows_modal, answers.reads_volume),
    "model/config.json": (loaded,),
    "model/tokenizer_config.json": (tokenized, loaded),
    "model/tokenizer.json": (tokenized, loaded),
    "model/generation_config.json": (loaded,),
    "model/model.safetensors": (loaded,),
}
KINDS = {".json": "json", ".yaml": "yaml", ".lock": "yaml", ".jsonl": "jsonl"}


PLACES = {
    "listing": (".dvc/cache", "*.dir"),
    "try": ("modal/volume", "attempts/*.json"),
    "submitted": ("modal/volume", "job.json"),
}


def path_of(root: Path, name: str) -> Path:
    if name not in PLACES:
        return root / name
    folder, pattern = PLACES[name]
    return next((root / folder).rglob(pattern))


def kind_of(name: str, path: Path) -> str:
    return "json" if name in PLACES else KINDS.get(path.suffix, "")
