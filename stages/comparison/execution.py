"""The execution record: the protocol as it was run, the machines, the deviations and the limits."""

from typing import Any

from stages.command import TASKS, ParityError, Task
from stages.comparison.allowlist import Words
from stages.comparison.claims import shared_tasks, unlike
from stages.comparison.compare import one_value
from stages.comparison.deviations import deviations
from stages.comparison.facts import cache
from stages.comparison.machine import cpus, memory, unrecorded_machine
from stages.comparison.publication import every, facts, timing_definitions
from stages.comparison.records import Evidence
from stages.comparison.schedule import Deviation
from stages.comparison.sides import Side
from stages.comparison.statistics import NOT_ESTIMATED
from stages.layout import input_names
from stages.protocol import Protocol

PRECISION = {"bfloat16": "BF16", "float32": "FP32"}
# Deviations whose values stand elsewhere in the documents, or are shortened digests, which look like host names.
UNSAID = ("delivery_clock", "protocol_edited")


# By whether recipes were chosen by test scores, which no figure tells.
TEST_POLICY = {
    None: "No input was cut. Whether a recipe was chosen by test scores is not recorded.",
    False: "No recipe was chosen by test scores, and no input was cut.",
    True: "A recipe was chosen by test scores. No input was cut.",
}


def protocol_of(pair: tuple[Side, Side]) -> Protocol:
    if unlike(*pair):  # which holds names that may not leave, not even in a message
        raise ParityError("publish: the protocols differ; only runs of one are published together, `compare` has both")
    protocol = next((run.protocol for side in pair for run in side.runs if run.protocol), None)
    if protocol is None:
        raise ParityError("publish: the protocol of the runs is not at their revisions")
    return protocol


def record(subject: Side, other: Side) -> dict[str, Any]:
    """The execution side of the publication; leaves that are `Words` are sentences of this project."""
    pair = subject, other
    protocol, evidence = protocol_of(pair), every(pair)
    first = evidence[0]
    return {
        "schema_version": 1,
        "purpose": Words("What was executed, for checking the results; the project itself holds what reproduces it."),
        "model": first.job.model.id,
        "model_revision": first.job.model.revision,
        "dataset_revisions": {
            corpus.id.split("/")[-1]: corpus.revision for corpus in (protocol.corpora.sft, protocol.corpora.pretrain)
        },
        "inputs": inputs(pair, protocol),
        "versions": dict(first.environment.versions)
        if one_value([e.environment.versions for e in evidence]).equal
        else None,
        "seed": subject.of(shared_tasks(*pair)[0])[0].seed,
        "accepted_runs_per_stage_per_platform": min(
            len(side.of(task)) for side in pair for task in shared_tasks(*pair)
        ),
        "execution": execution(pair, first),
        "native_serialized_training_arguments": {
            task: arguments(subject.of(task)[0].training) for task in shared_tasks(*pair)
        },
        "warmup_note": Words("warmup_steps is given as the pinned libraries took it."),
        "data_preparation": preparation(protocol),
        "evaluation": evaluation(pair, protocol),
        "resource_controls": controls(pair, protocol),
        "deviations": [published(deviation) for deviation in deviations(list(pair))],
        "limits": limits(pair),
        "timing_definitions": timing_definitions(pair),
    }


def fewest(pair: tuple[Side, Side]) -> int:
    return min(len(side.of(task)) for side in pair for task in shared_tasks(*pair))


def inputs(pair: tuple[Side, Side], protocol: Protocol) -> list[dict[str, Any]]:
    """The four inputs with the digests that were really used."""
    found = []
    for task in TASKS:
        pins = getattr(protocol.inputs, task)
        used = {name: digest for side in pair for run in side.of(task) for name, digest in run.inputs.items()}
        for name, pin in zip(input_names(task), (pins.train, pins.test), strict=True):
            found.append({"path": name, "sha256": used.get(name), "rows": pin.rows})
    return found


def execution(pair: tuple[Side, Side], evidence: Evidence) -> dict[str, Any]:
    gpu, job = evidence.environment.gpu, evidence.job
    api = "CUDA" if evidence.device == "cuda" else "CPU"
    device = Words(f"{api} / {{gpu}}", {"gpu": gpu.name}) if gpu else Words(api)
    starts = [{"id": e.job.model.id, "revision": e.job.model.revision} for e in every(pair) if e.stage == "train"]
    return {
        **{
            side.label: Words("The pinned worker, as one job on {platform}.", {"platform": side.label}) for side in pair
        },
        "training_device": device,
        "evaluation_device": device,
        "gpu_count_per_job": gpu.count if gpu else 0,
        "training_precision": Words(precision(job.execution.training_dtype)),
        "evaluation_precision": Words(precision(job.execution.evaluation_dtype)),
        "attention": Words("SDPA") if job.execution.attention == "sdpa" else Words("eager"),
        "tf32_execution_setting": job.execution.tf32,
        "tasks_start_independently_from_base": one_value(list(starts)).equal,
        "train_from_scratch": False,
    }


def precision(dtype: Any) -> str:
    if dtype not in PRECISION:
        raise ParityError(f"publish: a precision that no rule knows; known are {', '.join(PRECISION)}")
    return PRECISION[dtype]


def arguments(evidence: Evidence | None) -> dict[str, Any] | None:
    """The trainer's arguments as recorded; one seed is used for the model's updates and for the data."""
    training = evidence.job.training if evidence else None
    if training is None:
        return None
    return {"seed": training.seed, "data_seed": training.seed, **training.recipe}


def preparation(protocol: Protocol) -> dict[str, Any]:
    sft, pretrain, rows = protocol.select.sft, protocol.select.pretrain, protocol.inputs
    rule = "Sorted by the SHA-256 of the sentence, duplicates and test matches left out, the first {n} per class."
    longer = (
        "Paragraphs longer than {n} characters in corpus order, duplicates and test matches left out, the first {rows}."
    )
    return {
        "normalization": Words("Rows are equal when they are after case folding and joining of white space."),
        "sft": {
            "dataset": protocol.corpora.sft.id,
            "training_split": protocol.corpora.sft.train_split,
            "evaluation_split": protocol.corpora.sft.test_split,
            "selection": Words(rule, {"n": sft.rows_per_class}),
            "training_rows": rows.sft.train.rows,
            "evaluation_rows": rows.sft.test.rows,
            "loss": Words("On completions alone.")
            if protocol.train.sft.completion_only_loss
            else Words("On every token."),
        },
        "pretrain": {
            "dataset": protocol.corpora.pretrain.id,
            "configuration": protocol.corpora.pretrain.configuration,
            "selection": Words(longer, {"n": pretrain.longer_than, "rows": pretrain.rows}),
            "training_rows": rows.pretrain.train.rows,
            "evaluation_split": protocol.corpora.pretrain.test_split,
            "evaluation_rows": rows.pretrain.test.rows,
            "evaluation_selection": Words("Every test row longer than {n} characters.", {"n": pretrain.longer_than}),
        },
        "input_serialization": Words("JSON Lines, UTF-8, keys sorted, text unescaped, a newline after each row."),
        "base_pretraining_contamination": Words("Not known; the corpora are public."),
    }


def evaluation(pair: tuple[Side, Side], protocol: Protocol) -> dict[str, Any]:
    sft, pretrain, gates = protocol.score.sft, protocol.score.pretrain, protocol.gates
    tokens = {run.number("evaluate", "tokens") for side in pair for run in side.of("pretrain")}
    tuned: bool | None = facts(pair).get("heldout_score_recipe_tuning")
    accuracy = "Accuracy at least {a}, format validity at least {v}, at most {p} points below the other."
    return {
        "baseline": Words("The untouched base model, scored in the same way before training."),
        "sft": {
            "method": Words("Labels by greedy generation; what is no label is wrong."),
            "max_new_tokens": sft.max_new_tokens,
            "do_sample": False,
            "batch_size": sft.batch_size,
            "input_truncation": False,
        },
        "pretrain": {
            "method": Words("Next-token NLL in FP32 over whole paragraphs, every token but the first scored once."),
            "max_window_tokens": pretrain.max_window_tokens,
            "scoring_stride": pretrain.scoring_stride,
            "target_tokens": tokens.pop() if len(tokens) == 1 else None,
            "nll": Words("The sum over all tokens, divided by their number."),
            "perplexity": Words("The exponential of the NLL."),
            "paragraph_perplexities_averaged": False,
        },
        "quality_gates": {
            "pretraining": Words("NLL as above on all test paragraphs; lower is better."),
            "finetuning": Words("Accuracy and format validity as above on all test rows."),
            "test_policy": Words(TEST_POLICY[tuned]),
            "pretraining_gate": Words(
                "NLL below the base's, at most {n} percent above the other's.",
                {"n": gates.pretrain.nll_percent_above_other_at_most},
            ),
            "finetuning_gate": Words(
                accuracy,
                {
                    "a": gates.sft.accuracy_at_least,
                    "v": gates.sft.format_validity_at_least,
                    "p": gates.sft.accuracy_points_below_other_at_most,
                },
            ),
        },
        **({} if tuned is None else {"heldout_score_recipe_tuning": tuned}),
    }


def controls(pair: tuple[Side, Side], protocol: Protocol) -> dict[str, Any]:
    trained = {side.label: run.training for side in pair for run in side.of(shared_tasks(*pair)[0])[:1] if run.training}
    machines = {(cpus(evidence), memory(evidence)) for evidence in trained.values()}
    known = len(trained) == 2 and not any("limit" in what for e in trained.values() for what in unrecorded_machine(e))
    caches = {cache(evidence) for evidence in trained.values()}
    return {
        "frozen_plan_cpu": facts(pair).get("frozen_plan_cpu", protocol.resources.cpus),
        **{label: control(evidence) for label, evidence in trained.items()},
        "identical_host_or_cpu_limits": known and len(machines) == 1,
        "matched_cache_warmth": len(trained) == 2 and len(caches) == 1 and caches != {None},
    }


def control(evidence: Evidence) -> dict[str, Any]:
    """What the platform was asked for and what the worker saw of it."""
    asked = {**resources(evidence, "cpu"), **resources(evidence, "memory")}
    found: dict[str, Any] = {key: value for key, value in asked.items() if isinstance(value, int | float)}
    if not found:
        found = requests(evidence)
    if seen := evidence.environment.cpu:
        limit = {} if seen.cgroup_limit is None else {"cpus": seen.cgroup_limit}
        found |= {
            "host_visible_cpus": seen.visible,
            "cpu_affinity_count": seen.affinity,
            "cgroup_v2_limit_probe": limit,
        }
        found["effective_cpu_limit"] = seen.effective
    return found


def resources(evidence: Evidence, word: str) -> dict[str, object]:
    known = evidence.receipt.resources if evidence.receipt else {}
    return {key: value for key, value in known.items() if word in key}


def requests(evidence: Evidence) -> dict[str, Any]:
    """The requests as numbers, of a platform that tells them in words such as 48Gi."""
    cpu, ram = cpus(evidence).request, memory(evidence).request
    found = {"cpu_request": cpu, "memory_request_mib": None if ram is None else ram / 2**20}
    return {key: float(value) if value % 1 else int(value) for key, value in found.items() if value is not None}


def published(deviation: Deviation) -> dict[str, Any]:
    """A deviation with its values; a key that is not one of the sides is the project's own."""
    values = {} if deviation.item in UNSAID else deviation.values
    template = "; ".join(f"{{name{i}}}: {{value{i}}}" for i in range(len(values)))
    slots: dict[str, str | int | float] = {}
    for i, (name, value) in enumerate(values.items()):
        slots |= {f"name{i}": name, f"value{i}": value}
    task: Task | None = deviation.task
    return {
        "item": Words(deviation.item),
        "stage": task,
        "details": Words(f"{deviation.sentence} {template}".strip(), slots),
    }


def limits(pair: tuple[Side, Side]) -> list[Words]:
    found = [Words("Equal GPU models do not make equal machines: times compare offers, not trainers.")]
    if fewest(pair) < 2:
        found.append(Words(f"One run on a side: the spread between runs is {NOT_ESTIMATED}, there is no interval."))
    found.append(Words("Nothing here tells of larger models, several GPUs, or training from scratch."))
    found.append(Words("Weights, rows, invoices and credentials are not part of this publication."))
    return found
