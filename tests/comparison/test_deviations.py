"""Promise: deviations are found in the evidence, with their values, and none is made up."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import build
from stages.comparison.runs import protocol_digest, read_runs
from tests.comparison.build import START, branch, commit
from tests.comparison.judge import HOUR, Change, compared, found, set_in
from tests.conftest import run


@pytest.mark.parametrize(
    ("item", "change", "value"),
    [
        ("cpu_limits", set_in("environment", "cpu", "cgroup_limit", value=2.0), "limit 2"),
        ("memory_limits", set_in("environment", "memory", "cgroup_limit_bytes", value=1 << 30), "limit 1 GiB"),
        ("gpu", set_in("environment", "gpu", "name", value="NVIDIA T4"), "NVIDIA T4"),
        ("gpu_memory", set_in("environment", "gpu", "memory_bytes", value=1 << 20), "1 MiB"),
        ("gpu_driver", set_in("environment", "gpu", "driver", value=None), "not recorded"),
        ("versions", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0"),
        ("versions_off_pins", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0, pinned 1.13.0"),
        ("receipts_not_final", set_in("receipt", "final", value=False), "sft baseline, sft train, sft evaluate"),
        ("cache", set_in("receipt", "resources", value={"cache": "warm"}), "warm"),
        ("attempts", set_in("receipt", "attempts", value=[{"outcome": "preempted"}, {"outcome": "succeeded"}]), "6"),
        ("protocol_edited", set_in("protocol", "sha256", value="3" * 64), "ran 333333333333, stands "),
        ("dirty", set_in("dirty", value=True), "dirty"),
        ("rehearsal", set_in("rehearsal", value=True), "emulator"),
        ("worker_code", set_in("job", "code", value="4" * 64), "4" * 64),
        ("delivery_clock", set_in("timings", "delivery_clock", value="by the sun"), "by the sun, covers train"),
        ("order", set_in("dirty", value=False), "2026-11-01 09:"),
    ],
)
def test_each_deviation_is_found_with_its_values(repo: Path, item: str, change: Change, value: str) -> None:
    deviation = found(compared(repo, change), item)
    assert deviation is not None
    assert any(value in each for each in deviation.values.values()), deviation


@pytest.mark.parametrize(
    ("item", "change", "name"),
    [
        (
            "gpu_driver",
            set_in("environment", "gpu", "driver", value=None),
            "the GPU driver",
        ),
        ("cpu_limits", set_in("environment", "cpu", value=None), "the CPUs"),
        ("memory_limits", set_in("environment", "memory", value=None), "the memory"),
        (
            "cache",
            set_in("receipt", "resources", value={"cache": "cold"}),
            "whether a cache was warm",
        ),
        ("versions", set_in("environment", "versions", value={}), "every package"),
        ("delivery_clock", set_in("timings", "delivery_clock", value=None), "the delivery clock"),
        (
            "protocol_content",
            set_in("protocol", "sha256", value=None),
            "the protocol's digest",
        ),
    ],
)
def test_what_one_side_has_not_recorded_is_not_said_to_differ(repo: Path, item: str, change: Change, name: str) -> None:
    deviation = found(compared(repo, change), item)
    assert deviation is not None
    assert deviation.sentence == f"Not recorded on every side: {name}."


def test_a_job_on_a_cpu_is_known_to_have_had_no_gpu(repo: Path) -> None:
    deviation = found(compared(repo, set_in("environment", "gpu", value=None)), "gpu")
    assert deviation is not None
    assert (deviation.sentence, deviation.values["modal"]) == ("The GPU models differ.", "none")


def test_matching_evidence_names_what_differs_and_what_is_not_recorded(repo: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["environment"]["versions"] |= {"trl": "1.14.0"}
        document["training_tokens_sha256"] = "5" * 64
        document["job"]["model"]["revision"] = "other"
        document["job"]["model"]["sha256"] = {}
        document["job"]["inputs"] = {"sft-train.jsonl": "6" * 64}

    matching = compared(repo, change, weights="others").pairs[0].tasks["sft"].matching
    assert matching == {
        "model_revision": (False, ("revision",)),
        "input_hashes": (False, ("sft-train.jsonl",)),
        "versions": (False, ("trl",)),
        "training_tokens_sha256": (False, ("digest",)),
        "model_weights_sha256": (False, ("seed 11",)),
    }


def test_a_package_or_an_input_that_one_side_has_not_recorded_is_no_difference(repo: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["environment"]["versions"]["trl"]
        document["job"]["model"]["sha256"] = {}
        document["job"]["inputs"].pop("sft-train.jsonl", None)

    matching = compared(repo, change).pairs[0].tasks["sft"].matching
    assert (matching["versions"], matching["input_hashes"]) == ((None, ()), (None, ()))
    assert matching["model_revision"] == (True, ())


def test_weights_as_loaded_tell_base_models_apart_that_share_a_revision(repo: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["job"]["model"]["sha256"].pop("model.safetensors", None)
        document["loaded_weights_sha256"] = "6" * 64

    matching = compared(repo, change).pairs[0].tasks["sft"].matching
    assert matching["model_revision"] == (False, ("model.safetensors",))


def test_a_protocol_that_was_edited_since_the_run_is_named(repo: Path) -> None:
    def edit(path: Path) -> None:
        path.write_text(path.read_text().replace("accuracy_at_least: 0.8", "accuracy_at_least: 0.7"))

    branch(repo, "a")
    branch(repo, "b", seed=12, start=START + HOUR)
    run("git", "checkout", "--quiet", "b", cwd=repo)
    edit(repo / "protocols/embedded.yaml")
    commit(repo, "an easier gate")
    run("git", "checkout", "--quiet", "main", cwd=repo)
    deviation = found(build(read_runs(["a", "b"])), "protocol_edited")
    assert deviation is not None
    was, now = (protocol_digest(read_runs([name])[0].protocol) for name in ("a", "b"))  # type: ignore[arg-type]
    assert deviation.values == {"b": f"ran {was:.12}, stands {now:.12}"}
    assert was != now


def test_like_runs_deviate_in_nothing_but_their_order(repo: Path) -> None:
    assert {deviation.item for deviation in compared(repo).deviations} == {"order"}


def test_a_build_suffix_is_no_deviation_from_a_pin(repo: Path) -> None:
    assert not found(
        compared(repo, set_in("environment", "versions", "torch", value="2.14.0+cu126")), "versions_off_pins"
    )


def test_jobs_that_overlap_are_named_and_a_shared_job_does_not_overlap_itself(repo: Path) -> None:
    deviation = found(compared(repo, start=START + timedelta(seconds=30)), "overlap")
    assert deviation is not None
    assert deviation.values["overlap 1"].startswith(
        "nodus sft baseline ran until 2026-11-01 08:01:50, modal sft baseline"
    )
    assert deviation.values["more"] == "8"


def test_the_same_run_under_two_names_counts_once(repo: Path) -> None:
    branch(repo, "a")
    (repo / "x").write_text("")
    comparison = build(read_runs(["a", "a^{}"]))
    assert found(comparison, "same_run") == (
        "same_run",
        None,
        "The same run under several names counts once.",
        {"a^{}": "same as a"},
    )
    assert [len(side.runs) for side in comparison.sides] == [1]
