"""Promise: a wrong key, type or value stops before anything runs, with file, key path, found and allowed."""

from pathlib import Path

import pytest
import yaml

from stages.check import checksums
from stages.command import ParityError
from stages.platforms import names, read_settings
from stages.protocol import Protocol, read, read_params, read_protocol
from stages.validation import read_yaml
from tests.conftest import ROOT
from tests.conftest import read as read_json


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "protocols").mkdir()
    for name in ("params.yaml", "protocols/embedded.yaml", "protocols/pilot.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def edit(path: Path, keys: str, value: object) -> None:
    data = here = yaml.safe_load(path.read_text())
    *parents, last = keys.split(".")
    for key in parents:
        here = here[key]
    if value is ...:
        del here[last]
    else:
        here[last] = value
    path.write_text(yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        ("train.sft.learning_rte", 1.0, "train.sft.learning_rte: unknown key; allowed here: bf16, "),
        ("train.sft.learning_rate", "fast", "train.sft.learning_rate: found 'fast', expected a valid number"),
        ("train.sft.max_steps", 0, "train.sft.max_steps: found 0, expected greater than or equal to 1"),
        ("train.sft.bf16", 1, "train.sft.bf16: found 1, expected a valid boolean"),
        ("train.pretrain.learning_rate", float("nan"), "train.pretrain.learning_rate: found nan, expected "),
        ("train.sft.max_steps", ..., "train.sft.max_steps: missing"),
        ("gates.sft.accuracy_at_least", 80, "gates.sft.accuracy_at_least: found 80, expected less than or equal to 1"),
        ("inputs.sft.train.sha256", "AB", "inputs.sft.train.sha256: found 'AB', expected 64 lower-case hex digits"),
        ("model.source", "ftp", "model.source: found 'ftp', expected 'hub' or 'generated'"),
        ("model.id", "../../etc/passwd", "model.id: found '../../etc/passwd', expected <owner>/<name>"),
        ("version", 2, "version: found 2, expected 1"),
        ("score.pretrain.scoring_stride", 128, "scoring_stride 128 must be below max_window_tokens 128"),
        ("model.revision", "main", "model: revision: found 'main', expected the seed that it is generated from"),
        ("corpora.sft.revision", "eleven", "corpora.sft: revision: found 'eleven', expected the seed"),
        ("model.architecture.num_key_value_heads", 3, "num_key_value_heads: 3 does not divide num_attention_heads"),
        ("train.sft.optim", "adam", "train.sft.optim: found 'adam', expected 'adamw_torch'"),
        ("train.sft.lr_scheduler_type", "cosin", "train.sft.lr_scheduler_type: found 'cosin', expected 'linear'"),
        ("stack.torch", 2.14, "stack.torch: found 2.14, expected a valid string"),
        ("name", "other", "name: found 'other', expected the file's own, 'embedded'"),
    ],
)
def test_a_wrong_protocol_is_refused_by_file_key_found_and_allowed(
    project: Path, keys: str, value: object, said: str
) -> None:
    path = project / "protocols" / "embedded.yaml"
    edit(path, keys, value)
    with pytest.raises(ParityError) as caught:
        read_protocol("embedded", project)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_two_precisions_at_once_are_refused(project: Path) -> None:
    for name in ("bf16", "fp16"):
        edit(project / "protocols" / "embedded.yaml", f"train.sft.{name}", True)
    with pytest.raises(ParityError, match=r"train\.sft: bf16 and fp16 are both true"):
        read_protocol("embedded", project)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        ("seed", "eleven", "seed: found 'eleven', expected a valid integer"),
        ("seed", -1, "seed: found -1"),
        ("repeat", 0, "repeat: found 0"),
        ("campaign.cap_usd", 1.0, "campaign.cap_usd: found 1.0, expected a valid string"),
        ("campaign.cap_usd", "a dollar", "campaign.cap_usd: found 'a dollar', expected USD in quotes"),
    ],
)
def test_wrong_params_are_refused_by_key(project: Path, keys: str, value: object, said: str) -> None:
    edit(project / "params.yaml", keys, value)
    with pytest.raises(ParityError, match=said.replace("(", r"\(")):
        read_params(project)


def test_an_unknown_protocol_lists_what_exists(project: Path) -> None:
    with pytest.raises(ParityError, match="found 'nonesuch', expected one of embedded, pilot"):
        read_protocol("nonesuch", project)


def test_a_platform_section_is_validated_by_its_platform() -> None:
    assert "local" in names()
    with pytest.raises(ParityError, match=r"local\.device: found 'tpu', expected 'auto', 'cpu' or 'cuda'"):
        read_settings("local", {"local": {"device": "tpu"}}, Path("params.yaml"))
    with pytest.raises(ParityError, match=r"platform: found 'mars', expected one of .*local"):
        read_settings("mars", {}, Path("params.yaml"))
    with pytest.raises(ParityError, match=r"params\.yaml: colour: unknown key"):
        read_settings("local", {"colour": 1}, Path("params.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2\n", r":2:1: not valid YAML: the key 'a' stands twice"),
        ("a: [1\n", r":2:1: not valid YAML"),
        ("- 1\n", r"found \[1\], expected keys and values"),
        ("a: !!python/object:os.system {}\n", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
    ],
)
def test_yaml_that_is_no_mapping_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ParityError, match=said):
        read_yaml(path)


def test_numbers_are_read_as_dvc_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 2e-05\nb: 5.0e-5\nc: 1E3\nd: 11\n")
    assert read_yaml(path) == {"a": 2e-05, "b": 5e-05, "c": 1000.0, "d": 11}


def test_the_pilot_protocol_says_what_the_execution_record_says(pilot: Path, pilot_protocol: Protocol) -> None:
    record = read_json(pilot / "execution-record.json")
    assert (pilot_protocol.model.id, pilot_protocol.model.revision) == (record["model"], record["model_revision"])
    assert pilot_protocol.corpora.sft.revision == record["dataset_revisions"]["sst2"]
    assert pilot_protocol.corpora.pretrain.revision == record["dataset_revisions"]["wikitext"]
    stack = pilot_protocol.stack.model_dump(by_alias=True)
    assert stack == {name: version.split("+")[0] for name, version in record["versions"].items()}
    for task in ("sft", "pretrain"):
        recorded = record["native_serialized_training_arguments"][task]
        seeds = {recorded.pop("seed"), recorded.pop("data_seed")}
        assert getattr(pilot_protocol.train, task).model_dump() == recorded
        assert seeds == {read_params(ROOT)[0].seed}
    assert pilot_protocol.score.sft.max_new_tokens == record["evaluation"]["sft"]["max_new_tokens"]
    assert pilot_protocol.score.sft.batch_size == record["evaluation"]["sft"]["batch_size"]
    assert pilot_protocol.score.pretrain.max_window_tokens == record["evaluation"]["pretrain"]["max_window_tokens"]
    assert pilot_protocol.score.pretrain.scoring_stride == record["evaluation"]["pretrain"]["scoring_stride"]
    pins = {f"{task}-{split}.jsonl": getattr(getattr(pilot_protocol.inputs, task), split)
            for task in ("sft", "pretrain") for split in ("train", "test")}  # fmt: skip
    assert {name: pin.rows for name, pin in pins.items()} == {i["path"]: i["rows"] for i in record["inputs"]}
    published = {i["path"]: i["sha256"] for i in record["inputs"]}
    assert [name for name, pin in pins.items() if pin.sha256 == published[name]] == [
        "pretrain-train.jsonl",
        "pretrain-test.jsonl",
    ]
    assert pilot_protocol.model.architecture.non_embedding_parameters == 357_898_112


def test_checksums_are_the_four_pins(embedded: Protocol) -> None:
    lines = checksums(embedded).decode().splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "sft-train.jsonl", "sft-test.jsonl", "pretrain-train.jsonl", "pretrain-test.jsonl"
    ]  # fmt: skip
    assert lines[0].startswith(embedded.inputs.sft.train.sha256)


def test_the_committed_params_and_protocols_are_valid() -> None:
    params, protocol = read(ROOT)
    assert (params.protocol, params.platform, protocol.name) == ("embedded", "local", "embedded")
