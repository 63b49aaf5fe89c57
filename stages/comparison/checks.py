"""Checks of one run against itself: every figure that can be made again from what it rests on is made again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from stages import layout
from stages.command import TASKS, ParityError, Task
from stages.comparison.artifacts import cached, locked, md5_file, md5_found
from stages.comparison.audited import Audited, Line, same, unknown
from stages.comparison.booked import check_campaign
from stages.comparison.charges import GOOD_ENDINGS
from stages.comparison.gates import verdicts
from stages.comparison.revisions import Files
from stages.comparison.runs import protocol_digest
from stages.evidence.digests import parse_json, read_lines, sha256_json
from stages.jobs import WORKER_CODE, safe
from stages.scoring.metrics import OF_TASK

SUMS = "reference/SHA256SUMS"
ADDED = ("delivery_seconds", "charge_usd")  # to a stage's metrics, by the submitting side


def check_reference(run: Audited) -> Iterator[Line]:
    """The published figures against their list of digests."""
    listed = (run.files.read(SUMS) or b"").splitlines()
    if not listed:
        yield unknown(SUMS, "no such file")
    for number, line in enumerate(listed, 1):
        digest, _, name = line.decode(errors="backslashreplace").partition("  ")
        if not safe(name):
            raise ParityError(f"{SUMS}:{number}: found {line!r:.80}, expected a digest and a plain path")
        content = run.files.read(f"reference/{name}")
        found = None if content is None else hashlib.sha256(content).hexdigest()
        yield same(f"reference/{name}", digest, found)


def check_lock(run: Audited) -> Iterator[Line]:
    """Everything that a stage wrote, in git or in DVC's cache, against `dvc.lock`, and `dvc.lock` against itself."""
    try:
        lock = locked(run.files)
    except ParityError as error:
        yield unknown("dvc.lock", str(error))
        return
    for stage, path, md5 in lock.deps:
        yield same(f"dvc.lock: {path}, as {stage} read it", lock.outs[path], md5)
    for path, md5 in lock.outs.items():
        if not path.startswith("data/") and (content := run.files.read(path)) is not None:
            yield same(path, md5, hashlib.md5(content, usedforsecurity=False).hexdigest())
    for artifact in run.artifacts.values():
        if artifact.found is None:
            yield unknown(artifact.path, "neither in the DVC cache nor in the workspace; `dvc fetch` may bring it")
        elif artifact.path.startswith("data/"):
            yield same(artifact.path, artifact.md5, md5_found(artifact))


def check_cache(run: Audited) -> Iterator[Line]:
    """DVC's cached objects against their names, which DVC itself takes on trust."""
    for path, md5 in locked(run.files).outs.items() if run.files.read("dvc.lock") is not None else []:
        if md5.endswith(".dir") and cached(md5).is_file():
            yield same(f"{path}/ in DVC's cache", md5, f"{md5_file(cached(md5))}.dir")
    for artifact in run.artifacts.values():
        kept = cached(artifact.md5)
        if artifact.found != kept and not artifact.md5.endswith(".dir") and kept.is_file():
            yield same(f"{artifact.path} in DVC's cache", artifact.md5, md5_file(kept))


def check_protocol(run: Audited) -> Iterator[Line]:
    if run.protocol is None:
        yield unknown("protocol", "it is not there, or no evidence names it")
        return
    now = protocol_digest(run.protocol)
    for (task, stage), found in run.evidence.items():
        recorded = found["protocol"]["sha256"]
        what = f"{task} {stage}: protocol"
        yield same(what, recorded, now) if recorded else unknown(what, "no digest is recorded")


def check_inputs(run: Audited) -> Iterator[Line]:
    """Input rows against the protocol's pins and against what the jobs say they were given."""
    for (task, stage), found in run.evidence.items():
        for name, digest in found["job"]["inputs"].items():
            path = (layout.INPUTS / name).as_posix()
            yield run.digest(f"{task} {stage}: {path}", path, digest)
            if run.protocol and found["protocol"]["sha256"]:
                pins = dict(zip(layout.input_names(task), getattr(run.protocol.inputs, task), strict=True))
                yield same(f"{task} {stage}: pin of {name}", pins[name][1].sha256, digest)


def check_jobs(run: Audited) -> Iterator[Line]:
    """Job ids from the jobs, and the digest of the code that did them."""
    code = code_digest(run.files)
    for (task, stage), found in run.evidence.items():
        job = dict(found["job"])
        if (recorded := job.pop("id")) is None:
            yield unknown(f"{task} {stage}: job id", "none is recorded")
            continue
        yield same(f"{task} {stage}: job id", recorded, sha256_json(job))
        yield same(f"{task} {stage}: worker code", job["code"], code)


def code_digest(files: Files) -> str:
    """As the job id has it: over the worker's Python files, by name and content."""
    names = [name for name in files.names(*WORKER_CODE) if name.endswith(".py")]
    return sha256_json({name: hashlib.sha256(files.read(name) or b"").hexdigest() for name in sorted(names)})


def check_outputs(run: Audited) -> Iterator[Line]:
    """What came back, file by file, against the digests that the worker sealed."""
    for (task, stage), found in run.evidence.items():
        for name, entry in found["output"].items():
            what = f"{task} {stage}: {name}"
            if name == "result.json":
                yield check_result(run, task, stage, entry["sha256"])
            elif name == "log_history.csv":
                path = layout.loss_curve(task).as_posix()
                content = run.files.read(path)
                digest = None if content is None else hashlib.sha256(content).hexdigest()
                yield same(f"{what} ({path})", entry["sha256"], digest)
            elif name.startswith("model/"):
                yield run.digest(
                    what, f"{layout.model(task).as_posix()}/{name.removeprefix('model/')}", entry["sha256"]
                )
            else:
                yield run.digest(what, layout.predictions(task, stage).as_posix(), entry["sha256"])


def check_result(run: Audited, task: Task, stage: str, sealed: str) -> Line:
    """The worker's own report, made again from metrics and evidence: an edited digit in either changes its digest."""
    found, metrics = run.evidence[task, stage], run.metrics.get((task, stage))
    what = f"{task} {stage}: metrics and environment against the worker's sealed report"
    if metrics is None:
        return unknown(what, "there are no metrics")
    times = found["timings"]
    report = {
        "version": 1,
        "job": found["job"]["id"],
        "device": found["device"],
        "environment": found["environment"],
        "started_utc": times["worker_started_utc"],
        "finished_utc": times["worker_finished_utc"],
        "worker_seconds": times["worker_seconds"],
        "metrics": {key: value for key, value in metrics.items() if key not in ADDED},
    }
    trained = ("training_tokens_sha256", "model_weights_sha256") if found["job"]["kind"] == "train" else ()
    report |= {key: found[key] for key in ("loaded_weights_sha256", *trained) if key in found}
    text = json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return same(what, sealed, hashlib.sha256(text.encode()).hexdigest())


def check_links(run: Audited) -> Iterator[Line]:
    """That the model which was scored is the one that was trained, and each weights digest the export's."""
    for task in TASKS:
        trained, scored = run.evidence.get((task, "train")), run.evidence.get((task, "evaluate"))
        if not trained:
            continue
        export = {n.removeprefix("model/"): e["sha256"] for n, e in trained["output"].items() if n.startswith("model/")}
        yield same(f"{task}: weights digest", trained["model_weights_sha256"], export.get("model.safetensors"))
        for name, digest in (scored["job"]["model"]["sha256"] if scored else {}).items():
            yield same(f"{task} evaluate: model/{name} is the trained one", digest, export.get(name))


def check_money(run: Audited) -> Iterator[Line]:
    """Charges, segments and delivery times, which metrics and evidence both tell."""
    for (task, stage), found in run.evidence.items():
        what, receipt, metrics = f"{task} {stage}", found["receipt"], run.metrics.get((task, stage), {})
        times = found["timings"]
        yield same(f"{what}: delivery seconds", metrics.get("delivery_seconds"), times["delivery_seconds"])
        if times["submitted_utc"] and times["verified_utc"]:
            ends = [datetime.fromisoformat(times[key]) for key in ("submitted_utc", "verified_utc")]
            yield same(f"{what}: delivery clock", times["delivery_seconds"], (ends[1] - ends[0]).total_seconds())
        if receipt and receipt["charge_usd"] is not None and receipt["final"]:
            yield same(f"{what}: charge", metrics.get("charge_usd"), float(receipt["charge_usd"]))
        # The segments are of the attempt that succeeded; one that failed is in the charge too.
        if receipt and receipt.get("segments") and all(a["outcome"] in GOOD_ENDINGS for a in receipt["attempts"]):
            total = sum((Decimal(part["usd"]) for part in receipt["segments"].values()), Decimal(0))
            yield same(f"{what}: sum of segments", Decimal(receipt["charge_usd"]), total)


def check_metrics(run: Audited) -> Iterator[Line]:
    """Quality from the predictions."""
    for task in TASKS:
        for stage in ("baseline", "evaluate"):
            recorded = run.metrics.get((task, stage))
            artifact = run.artifacts.get(layout.predictions(task, stage).as_posix())
            what = f"{task} {stage}: metrics from predictions"
            if recorded is None or artifact is None or artifact.found is None:
                yield unknown(what, "no metrics" if recorded is None else "the predictions are not on this machine")
                continue
            try:
                made = OF_TASK[task](parse_json(row) for row in read_lines(artifact.found))
            except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
                yield Line(what, "differs", "readable predictions", repr(error)[:120])
                continue
            for key, value in made.items():
                yield same(f"{what}: {key}", recorded.get(key), value)


def check_gates(run: Audited) -> Iterator[Line]:
    for task in TASKS:
        recorded, base, final = (run.metrics.get((task, stage)) for stage in ("gate", "baseline", "evaluate"))
        if run.protocol is None or recorded is None or base is None or final is None:
            yield unknown(f"{task}: gates", "gate, metrics or protocol are missing")
            continue
        made = {name: verdict._asdict() for name, verdict in verdicts(run.protocol, task, base, final).items()}
        yield same(f"{task}: gates", recorded, made)


CHECKS: tuple[Callable[[Audited], Iterable[Line]], ...] = (
    check_lock,
    check_cache,
    check_protocol,
    check_inputs,
    check_jobs,
    check_outputs,
    check_links,
    check_metrics,
    check_money,
    check_gates,
    check_campaign,
    check_reference,
)
