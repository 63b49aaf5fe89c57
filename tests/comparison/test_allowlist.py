"""Promise: nothing leaves in a publication that no rule allows, wherever in the inputs of either side it stands."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.command import ParityError
from stages.comparison.allowlist import Words, cleared
from stages.comparison.revisions import Folder
from stages.comparison.runs import Reader
from stages.evidence.ledger import Account
from stages.publish import of_runs
from stages.validation import validate
from tests.comparison.build import START, Builder, indented, repository

PLANTS = {
    "account": "acme-research-team",
    "word": "acmelabs",
    "words": "acme labs",
    "number of an account": "123456789012",
    "number of another": "8675309421",
    "token": "ak-x7Qp2mZr81LtVw93",
    "hugging face token": "hf_QwErTyUiOpAsDfGhJkLz",
    "hostname": "gpu-node-17.internal.example.com",
    "absolute path": "/home/alice/project/outputs",
    "windows path": "C:\\Users\\alice\\project",
    "e-mail": "alice@example.com",
    "backend identifier": "ap-4fK2mN8qR1sT5vW9xY3zA7",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "address": "10.1.2.3",
    "container's hostname": "3f2a9c81d7e4",
    "url": "https://user:secret@example.com",
}
FEW = ("word", "number of an account", "e-mail")
SIDES = ("nodus", "modal")
Place = Callable[[dict[str, Any], str], None]


def in_training(put: Place) -> Place:
    """Only a training job has a recipe."""
    return lambda found, text: put(found, text) if found["job"]["training"] else None


# Where a value of the evidence could come out: how to put a text there.
EVIDENCE: dict[str, Place] = {
    "gpu name": lambda found, text: found["environment"]["gpu"].update(name=text),
    "driver": lambda found, text: found["environment"]["gpu"].update(driver=text),
    "version": lambda found, text: found["environment"]["versions"].update(torch=text),
    "package": lambda found, text: found["environment"]["versions"].update({text: "1.0"}),
    "pin": lambda found, text: found["job"]["stack"].update(torch=text),
    "model": lambda found, text: found["job"]["model"].update(id=text),
    "revision": lambda found, text: found["job"]["model"].update(revision=text),
    "resource": lambda found, text: found["receipt"]["resources"].update(cpu_limit=text),
    "request": lambda found, text: found["receipt"]["resources"].update(cpu=text, memory=text),
    "resource key": lambda found, text: found["receipt"]["resources"].update({f"cpu {text}": 4}),
    "cache": lambda found, text: found["receipt"]["resources"].update(cache=text),
    "export": lambda found, text: found["output"].update({f"model/{text}": {"bytes": 1, "sha256": "0" * 64}}),
    "code": lambda found, text: found["job"].update(code=text),
    "tokens digest": lambda found, text: found.update(training_tokens_sha256=text),
    "weights digest": lambda found, text: found.update(model_weights_sha256=text),
    "optimiser": in_training(lambda found, text: found["job"]["training"]["recipe"].update(optim=text)),
    "recipe key": in_training(lambda found, text: found["job"]["training"]["recipe"].update({text: 1})),
    "clock": lambda found, text: found["timings"].update(delivery_clock=text),
    "segment": lambda found, text: found["receipt"]["segments"].update({text: {"seconds": 1, "usd": "0.1"}}),
    "device": lambda found, text: found.update(device=text),
    "dtype": lambda found, text: found["job"]["execution"].update(training_dtype=text, evaluation_dtype=text),
    "attention": lambda found, text: found["job"]["execution"].update(attention=text),
    "tf32": lambda found, text: found["job"]["execution"].update(tf32=text),
    "input": lambda found, text: found["job"]["inputs"].update({text: "0" * 64}),
    "input digest": lambda found, text: found["job"]["inputs"].update({"sft-train.jsonl": text}),
    "reason": lambda found, text: found["receipt"].update(attempts=[{"outcome": "succeeded", "reason": text}]),
    "outcome": lambda found, text: found["receipt"].update(attempts=[{"outcome": text}]),
    "platform": lambda found, text: found["receipt"].update(platform=text),
    "protocol": lambda found, text: found["protocol"].update(name=text),
    "protocol digest": lambda found, text: found["protocol"].update(sha256=text),
    "covers": lambda found, text: found.update(covers=[text]),
    "cpu model": lambda found, text: found["environment"]["cpu"].update(model=text),
    "system": lambda found, text: found["environment"].update(system=text, python=text),
    "commit": lambda found, text: found.update(commit=text),
    "job id": lambda found, text: found["job"].update(id=text),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A project for each side, with one run in it."""
    folder = tmp_path_factory.mktemp("plants")
    found = {}
    for i, (platform, charge) in enumerate(zip(SIDES, ("0.10", "0.20"), strict=True)):
        found[platform] = repository(folder / platform)
        Builder(found[platform], platform=platform, charge=charge, start=START + timedelta(hours=i)).write()
    return found


def published(roots: dict[str, Path]) -> str:
    """What would leave: the documents, or the message of their refusal."""
    try:
        return json.dumps(of_runs([Reader(side, Folder(roots[side])).run() for side in SIDES]))
    except ParityError as error:
        return str(error)


def planted(roots: dict[str, Path], sides: tuple[str, ...], pattern: str, put: Place, text: str) -> str:
    """What would leave with a text put into every such file of these sides."""
    paths = [path for side in sides for path in sorted(roots[side].glob(pattern))]
    before = {path: path.read_bytes() for path in paths}
    try:
        for path, content in before.items():
            found = json.loads(content)
            put(found, text)
            path.write_bytes(indented(found))
        return published(roots)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def plants() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text on both sides, a few of them on either alone, where what the other side says may be what is read."""
    yield from ((SIDES, kind) for kind in PLANTS)
    yield from (((side,), kind) for side in SIDES for kind in FEW)


def stays(text: str, found: str) -> bool:
    return json.dumps(text)[1:-1] not in found and text not in found


def test_the_runs_that_values_are_planted_in_can_be_published(roots: dict[str, Path]) -> None:
    assert published(roots).startswith('{"results.json"')


@pytest.mark.parametrize("place", EVIDENCE)
def test_nothing_planted_in_evidence_comes_out(roots: dict[str, Path], place: str) -> None:
    for sides, kind in plants():
        found = planted(roots, sides, "metrics/*/evidence/*.json", EVIDENCE[place], PLANTS[kind])
        assert stays(PLANTS[kind], found), (place, kind, sides)


def in_every_value(found: dict[str, Any], text: str) -> None:
    for key, value in found.items():
        found[key] = dict.fromkeys(value, text) if isinstance(value, dict) else text


METRICS: dict[str, Place] = {
    "value": in_every_value,
    "key": lambda found, text: found.update({text: 1}),
    "key and value": lambda found, text: found.update({text: text}),
    "nested": lambda found, text: found.update(invalid={text: 1}),
}


@pytest.mark.parametrize("place", METRICS)
def test_nothing_planted_in_metrics_comes_out(roots: dict[str, Path], place: str) -> None:
    for sides, kind in plants():
        found = planted(roots, sides, "metrics/*/*.json", METRICS[place], PLANTS[kind])
        assert stays(PLANTS[kind], found), (place, kind, sides)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the strings in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from leaves(each, (*path, key))
    if isinstance(value, str):
        yield path


@pytest.mark.parametrize("kind", FEW)
def test_nothing_planted_in_the_runs_own_protocol_comes_out(roots: dict[str, Path], kind: str) -> None:
    """The protocols of the project that publishes are its own words; those that lie beside the runs are input."""
    files = {side: roots[side] / "protocols/embedded.yaml" for side in SIDES}
    before = {side: file.read_text() for side, file in files.items()}
    paths = list(leaves(yaml.safe_load(before["nodus"])))
    assert len(paths) > 25
    try:
        for path in paths:
            document = yaml.safe_load(before["nodus"])
            *way, last = path
            place = document
            for key in way:
                place = place[key]
            place[last] = PLANTS[kind]
            for file in files.values():
                file.write_text(yaml.safe_dump(document))
            assert stays(PLANTS[kind], published(roots)), (path, kind)
    finally:
        for side, file in files.items():
            file.write_text(before[side])


ENTRY = {"id": "nodus-sft-train-1", "platform": "nodus", "task": "sft", "stage": "train", "job": None}
CAMPAIGN = {"version": 1, "name": "x", "authorization_usd": "5", "cap_usd": "1", "reserve_usd": "1"}


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("key", ["name", "authorization_usd", "cap_usd", "reserve_usd", "recorded_usd", *ENTRY])
def test_a_planted_campaign_does_not_leave(roots: dict[str, Path], key: str, kind: str) -> None:
    entry = ENTRY | {"role": "superseded", "held_usd": None, "charge_usd": "0.1", "final": True}
    account: dict[str, Any] = CAMPAIGN | {"attempts": [entry], "recorded_usd": "0.1"}
    (account if key in account else entry)[key] = PLANTS[kind]
    try:
        validate(Account, account, "campaign")
    except ParityError:
        return  # no campaign at all: it would not be read
    path = roots["nodus"] / "metrics/campaign.json"
    path.write_text(json.dumps(account))
    try:
        assert stays(PLANTS[kind], published(roots))
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("key", "text", "leaves"),
    [
        ("recorded_usd", "0.0487", True),
        ("recorded_usd", "123456789012", False),
        ("role", "0.0487", False),  # money where money stands, and nowhere else
        ("runningUSD", "0.0487", True),
        ("acmelabsUSD", "0.0487", False),
        ("acmelabsSeconds", 3, False),
        ("gpu", "NVIDIA T4", True),
        ("role", "NVIDIA T4", False),
        ("model_weights_sha256", "a" * 64, True),
        ("role", "a" * 64, False),
        ("worker_started_utc", "2026-11-01T08:00:00+00:00", True),
        ("role", "2026-11-01T08:00:00+00:00", False),
    ],
)
def test_a_shape_may_stand_in_its_own_field_alone(key: str, text: Any, leaves: bool) -> None:
    keys = frozenset({"recorded_usd", "role", "gpu", "model_weights_sha256", "worker_started_utc"})
    if leaves:
        assert cleared({key: text}, keys) == {key: text}
    else:
        with pytest.raises(ParityError, match="publication stopped at /"):
            cleared({key: text}, keys)


@pytest.mark.parametrize(
    ("text", "leaves"), [("request 4, limit 4", True), ("limit 123456789012", False), ("limit acmelabs", False)]
)
def test_a_value_in_a_sentence_is_short_figures_and_known_words(text: str, leaves: bool) -> None:
    sentence = Words("The CPUs differ: {value}", {"value": text})
    if leaves:
        assert cleared(sentence, frozenset()) == f"The CPUs differ: {text}"
    else:
        with pytest.raises(ParityError, match="publication stopped"):
            cleared(sentence, frozenset())
