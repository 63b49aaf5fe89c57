"""Promise: rows are selected and serialized as recorded, streaming, from any source, and nothing else is written."""

import hashlib
import http.server
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.command import ParityError
from stages.corpora import generated
from stages.corpora.rows import prepared_rows, read_columns
from stages.corpora.select import ClassQuotas, fold, select_pretrain, select_sft
from stages.corpora.sources import snapshot, split_files
from stages.prepare import prepare
from stages.protocol import Corpus, PretrainSelection, Protocol, SftSelection
from tests.conftest import ROOT, run, stage

PROMPT = "{sentence}"


def rule(rows_per_class: int) -> SftSelection:
    return SftSelection(rows_per_class=rows_per_class, classes=("negative", "positive"), prompt=PROMPT)


def naive(rows: list[tuple[str, int]], held_out: list[tuple[str, int]], quota: int) -> list[tuple[str, int]] | None:
    """The recorded rule, word by word, all in memory."""
    seen, kept = {fold(s) for s, _ in held_out}, {0: [], 1: []}
    for sentence, label in sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).hexdigest()):
        if fold(sentence) in seen:
            continue
        seen.add(fold(sentence))
        if len(kept[label]) < quota:
            kept[label].append((sentence, label))
    return kept[0] + kept[1] if min(map(len, kept.values())) == quota else None


words = st.sampled_from(["a", "A", "b", " b", "c  d", "c d", "C D ", "ß", "SS", "é", "x", "y", "z", "w v"])
labelled = st.lists(st.tuples(words, st.integers(0, 1)), max_size=60)


@given(labelled, labelled, st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_streaming_selection_equals_the_recorded_rule(
    train: list[tuple[str, int]], test: list[tuple[str, int]], quota: int
) -> None:
    expected = naive(train, test, quota)
    if expected is None:
        with pytest.raises(ParityError, match=f"the protocol asks for {quota}"):
            select_sft(rule(quota), lambda: train, test)
    else:
        assert select_sft(rule(quota), lambda: train, test) == (expected, test)


def test_selection_is_exact_where_rows_are_forgotten_and_labels_contradict() -> None:
    rng = random.Random(3)
    texts = [f"{rng.randrange(4000)} {'x' * rng.randrange(3)}" for _ in range(30000)]
    train = [(text.upper() if rng.random() < 0.5 else text, rng.randrange(2)) for text in texts]
    expected = naive(train, [], 50)
    assert select_sft(rule(50), lambda: train, [])[0] == expected


def test_memory_is_bounded_by_what_can_be_selected() -> None:
    quotas = ClassQuotas(2, 10, set(), slack=2)
    most = 0
    for position in range(20000):
        quotas.add(position, f"sentence {position}", position % 2)
        most = max(most, len(quotas.first))
    assert most <= 4 * 2 * 10 * 2 + 1


def test_a_second_pass_is_made_where_late_duplicates_empty_a_class() -> None:
    def digest(text: str) -> bytes:
        return hashlib.sha256(text.encode()).digest()

    train = [(f"word{i}", i % 2) for i in range(3000)]
    leading = sorted((text for text, label in train if label == 1), key=digest)[:100]
    # At the very end, each of class 1's leading rows meets a duplicate of class 0 that sorts before it.
    spaced = ((text, [text + " " * n for n in range(1, 2000)]) for text in leading)
    train += [(next(other for other in others if digest(other) < digest(text)), 0) for text, others in spaced]
    passes = []

    def stream() -> Iterator[tuple[str, int]]:
        passes.append(1)
        yield from train

    assert select_sft(rule(30), stream, [])[0] == naive(train, [], 30)
    assert len(passes) == 2


def test_paragraphs_are_taken_in_order_distinct_long_enough_and_not_in_the_test_split() -> None:
    selection = PretrainSelection(rows=2, longer_than=3)
    train = ["", "abc", "  abcd ", "ABCD", "held out", "fifth", "sixth"]
    assert select_pretrain(selection, train, ["Held  OUT", "no"]) == (["  abcd ", "fifth"], ["Held  OUT"])


def test_a_label_outside_the_classes_is_refused() -> None:
    with pytest.raises(ParityError, match="train row 1: label -1, expected 0 to 1"):
        select_sft(rule(1), lambda: [("a", 0), ("b", -1)], [])


# The published files.


def test_the_published_paragraph_files_come_out_byte_for_byte(
    pilot: Path, pilot_protocol: Protocol, tmp_path: Path
) -> None:
    prepare(pilot_protocol, "pretrain", pilot, tmp_path)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    assert digests == {
        "pretrain-train.jsonl": "54ae1e32463439d6326ce6e727f32139c1e46561b538e76519145fc517a18427",
        "pretrain-test.jsonl": "3ced346675dcc17ca980342d79b45c8a5ec8350eb6e13f4e924f42cd913f3cf2",
    }
    assert [len((tmp_path / f"pretrain-{s}.jsonl").read_bytes().splitlines()) for s in ("train", "test")] == [
        1024,
        1833,
    ]


def test_the_pilots_sentences_are_selected_as_recorded(pilot: Path, pilot_protocol: Protocol) -> None:
    columns = {"sentence": "string", "label": "int64"}
    train, test = (
        list(read_columns([pilot / "stanfordnlp/sst2" / f"{split}.parquet"], columns))
        for split in ("train", "validation")
    )
    expected = naive(train, test, 1024)
    assert expected is not None
    rows = [json.loads(line) for line in prepared_rows(pilot_protocol, "sft", pilot)[0]]
    assert [row["prompt"] for row in rows] == [
        f"Classify the sentiment of this sentence as positive or negative.\nSentence: {sentence}\nSentiment:"
        for sentence, _ in expected
    ]
    assert [row["completion"] for row in rows] == [" negative"] * 1024 + [" positive"] * 1024


def test_dvc_prepares_the_pilots_inputs_from_a_mirror(pilot: Path, project: Path) -> None:
    run("dvc", "exp", "run", "-S", "protocol=pilot", "prepare@sft", "prepare@pretrain", cwd=project,
        env={"PARITY_MIRROR": str(pilot)})  # fmt: skip
    checked = run("sha256sum", "-c", "SHA256SUMS", cwd=project / "data/inputs").stdout
    assert checked.count(": OK") == 4


# The generated corpora.


def test_the_embedded_pins_are_what_the_generator_makes(embedded: Protocol, tmp_path: Path) -> None:
    taken = snapshot(embedded, None, tmp_path / "raw")
    assert {entry["source"] for entry in taken.values()} == {"generated"}
    for task in ("sft", "pretrain"):
        prepare(embedded, task, tmp_path / "raw", tmp_path)


def test_planted_duplicates_and_overlaps_are_there_and_are_excluded(embedded: Protocol) -> None:
    splits = generated.sentences(11)
    folds = [fold(row["sentence"]) for row in splits["train"]]
    held_out = {fold(row["sentence"]) for row in splits["validation"]}
    assert len(folds) - len(set(folds)) > 100
    assert sum(text in held_out for text in folds) > 100
    pairs = {name: [(row["sentence"], row["label"]) for row in rows] for name, rows in splits.items()}
    chosen, _ = select_sft(embedded.select.sft, lambda: pairs["train"], pairs["validation"])
    kept = [fold(sentence) for sentence, _ in chosen]
    assert len(kept) == len(set(kept)) == 2 * embedded.select.sft.rows_per_class
    assert not held_out & set(kept)
    paragraphs = generated.paragraphs(11)
    texts = [row["text"] for row in paragraphs["train"] if len(row["text"]) > 100]
    test = {fold(row["text"]) for row in paragraphs["test"]}
    assert len({fold(text) for text in texts}) < len(texts) - 5
    assert sum(fold(text) in test for text in texts) > 5


def test_embedded_sentiment_cannot_be_read_off_single_words(embedded: Protocol) -> None:
    """Even the best weighing of words, fitted on the train rows, stays below the accuracy gate."""
    splits = generated.sentences(11)
    pairs = {name: [(row["sentence"], row["label"]) for row in rows] for name, rows in splits.items()}
    train, test = select_sft(embedded.select.sft, lambda: pairs["train"], pairs["validation"])
    vocabulary = {word: i for i, word in enumerate(sorted({w for text, _ in train for w in text.lower().split()}))}

    def features(rows: list[tuple[str, int]]) -> tuple[np.ndarray, np.ndarray]:
        x = np.zeros((len(rows), len(vocabulary) + 1))
        x[:, -1] = 1
        for row, (text, _) in enumerate(rows):
            for word in text.lower().split():
                if word in vocabulary:
                    x[row, vocabulary[word]] = 1
        return x, np.array([label for _, label in rows])

    x, y = features(train)
    weights = np.zeros(x.shape[1])
    for _ in range(400):  # logistic regression by gradient descent
        weights += 2.0 * x.T @ (y - 1 / (1 + np.exp(-x @ weights))) / len(y) - 1e-3 * weights
    x, y = features(test)
    accuracy = ((x @ weights > 0) == y).mean()
    assert accuracy < embedded.gates.sft.accuracy_at_least, accuracy


def test_no_word_belongs_to_one_class_alone() -> None:
    counts: dict[str, Counter[int]] = {}
    for row in generated.sentences(11)["train"]:
        for word in set(row["sentence"].lower().split()):
            counts.setdefault(word, Counter())[row["label"]] += 1
    assert all(min(count[0], count[1]) > 0 for count in counts.values())


def test_the_generated_model_is_a_qwen2_that_loads_whole(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(tiny_model, output_loading_info=True)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    from tests.conftest import tiny_architecture

    counted = model.num_parameters(exclude_embeddings=True)
    assert counted == tiny_architecture(512).non_embedding_parameters


def test_the_generated_tokenizer_is_read_alike_with_and_without_transformers(tiny_model: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    texts = [row["text"] for row in generated.paragraphs(11)["test"]] + ["a  b\n\nc 1999 ,x <|endoftext|>é"]
    plain, full = Tokenizer.from_file(str(tiny_model / "tokenizer.json")), AutoTokenizer.from_pretrained(tiny_model)
    assert [plain.encode(text).ids for text in texts] == full(texts)["input_ids"]
    assert [full.decode(ids) for ids in full(texts)["input_ids"]] == texts


# Snapshots: mirrors and the hub.


def corpus(**changes: object) -> Corpus:
    values = {"id": "o/c", "revision": "1", "source": "hub", "configuration": None, "train_split": "train",
              "test_split": "test"}  # fmt: skip
    return Corpus.model_validate(values | changes)


def test_a_split_is_every_parquet_file_whose_name_starts_with_it(tmp_path: Path) -> None:
    shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    others = ["test.parquet", "training-notes.parquet", ".cache/train.parquet", "v1/train.parquet", "train.txt"]
    for name in (*shards, *others):
        path = tmp_path / "o/c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def found(made: Corpus, split: str) -> list[str]:
        return [str(path.relative_to(tmp_path / "o/c")) for path in split_files(tmp_path, made, split)]

    assert found(corpus(), "train") == [
        "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "v1/train.parquet"
    ]  # fmt: skip
    assert found(corpus(configuration="v1"), "train") == ["v1/train.parquet"]
    assert found(corpus(configuration="v2"), "test") == ["test.parquet"]
    with pytest.raises(ParityError, match="no parquet file of the split 'dev' of o/c"):
        split_files(tmp_path, corpus(), "dev")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as one dataset needs: its revision, its tree and its files."""

    files: ClassVar[dict[str, bytes]] = {}  # "<repo>/<path>" -> content
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append((path, self.headers.get("Authorization")))
        repo = "/".join(path.split("datasets/", 1)[-1].split("/")[:2])
        name = f"{repo}/" + path.split("/resolve/", 1)[-1].split("/", 1)[-1]
        if "/tree/" in path:
            rows = [{"type": "file", "path": n.removeprefix(repo + "/"), "size": len(b), "oid": "0" * 40}
                    for n, b in self.files.items() if n.startswith(repo)]  # fmt: skip
            self.answer(json.dumps(rows).encode(), "application/json")
        elif "/resolve/" in path and name in self.files:
            self.answer(self.files[name], "application/octet-stream")
        else:
            self.send_error(404)

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), "X-Repo-Commit": "1" * 40,
                           "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}.items():  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def as_pilot(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("protocol: embedded", "protocol: pilot"))


def test_the_hub_is_asked_for_the_pinned_revision_and_the_token_comes_from_the_environment(
    pilot: Path, project: Path
) -> None:
    as_pilot(project)
    sst2, wikitext = pilot / "stanfordnlp/sst2", pilot / "Salesforce/wikitext/wikitext-2-raw-v1"
    Hub.files = {
        "stanfordnlp/sst2/data/train-00000-of-00001.parquet": (sst2 / "train.parquet").read_bytes(),
        "stanfordnlp/sst2/data/validation-00000-of-00001.parquet": (sst2 / "validation.parquet").read_bytes(),
        "stanfordnlp/sst2/data/test-00000-of-00001.parquet": b"not asked for",
        "stanfordnlp/sst2/README.md": b"not asked for",
        "Salesforce/wikitext/wikitext-2-raw-v1/train-00000-of-00001.parquet": (
            wikitext / "train-head.parquet"
        ).read_bytes(),
        "Salesforce/wikitext/wikitext-2-raw-v1/test-00000-of-00001.parquet": (wikitext / "test.parquet").read_bytes(),
        "Salesforce/wikitext/wikitext-103-v1/train-00000-of-00002.parquet": b"not asked for",
    }
    Hub.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "hf_from_the_environment"}
    done = stage("sources", cwd=project, env=env)
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "stanfordnlp/sst2: hub, revision 8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb, sha256 " in done.stdout
    assert {token for _, token in Hub.asked} == {"Bearer hf_from_the_environment"}
    assert all("8d51e7e4887" in path or "b08601e04326" in path for path, _ in Hub.asked)
    kept = sorted(str(p.relative_to(project / "data/raw")) for p in (project / "data/raw").rglob("*") if p.is_file())
    assert kept == [
        "Salesforce/wikitext/wikitext-2-raw-v1/test-00000-of-00001.parquet",
        "Salesforce/wikitext/wikitext-2-raw-v1/train-00000-of-00001.parquet",
        "stanfordnlp/sst2/data/train-00000-of-00001.parquet",
        "stanfordnlp/sst2/data/validation-00000-of-00001.parquet",
    ]
    for task in ("sft", "pretrain"):
        assert stage("check", cwd=project).returncode == 0
        prepared = stage("prepare", task, cwd=project)
        assert prepared.returncode == 0, prepared.stderr


def test_an_unreachable_hub_is_one_line_with_the_way_out(project: Path) -> None:
    as_pilot(project)
    done = stage("sources", cwd=project)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the hub did not give the dataset stanfordnlp/sst2 at revision 8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb" in (
        done.stderr
    )
    assert "Set PARITY_MIRROR" in done.stderr
    assert not (project / "data/raw").exists()


# Files that are not what they should be.


def snapshot_with(tmp_path: Path, table: pa.Table) -> Path:
    folder = tmp_path / "generated/sentiment"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        pq.write_table(table, folder / f"{split}.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"text": ["a"]}), r"\.parquet: no column 'sentence'; it has text"),
        (pa.table({"sentence": ["a"], "label": ["0"]}), r"column 'label' is string, expected int64"),
        (pa.table({"sentence": ["a", None], "label": [0, 1]}), r"parquet: row 1: sentence is null"),
        (
            pa.table({"sentence": pa.array([], pa.string()), "label": pa.array([], pa.int64())}),
            "0 distinct rows of class",
        ),
    ],
)
def test_a_corpus_of_another_shape_is_refused_by_file(
    tmp_path: Path, embedded: Protocol, table: pa.Table, said: str
) -> None:
    raw = snapshot_with(tmp_path / "raw", table)
    with pytest.raises(ParityError, match=said):
        prepare(embedded, "sft", raw, tmp_path / "inputs")
    assert not (tmp_path / "inputs").exists()


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, embedded: Protocol) -> None:
    raw = snapshot_with(tmp_path / "raw", pa.table({"sentence": ["a"], "label": [0]}))
    (raw / "generated/sentiment/train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ParityError, match=r"train\.parquet: cannot be read as parquet"):
        prepare(embedded, "sft", raw, tmp_path / "inputs")


def test_an_input_off_its_pin_says_file_found_and_expected_and_writes_nothing(
    tmp_path: Path, embedded: Protocol
) -> None:
    raw = tmp_path / "raw"
    snapshot(embedded, None, raw)
    other = embedded.model_copy(update={"inputs": embedded.inputs.model_copy(update={"sft": embedded.inputs.pretrain})})
    with pytest.raises(ParityError, match=r"sft-train\.jsonl: 4096 rows, protocols/embedded\.yaml pins 320 at inputs"):
        prepare(other, "sft", raw, tmp_path / "inputs")
    assert not (tmp_path / "inputs").exists()


def test_the_mirrors_name_is_no_part_of_the_record(pilot: Path, project: Path) -> None:
    as_pilot(project)
    done = stage("sources", cwd=project, env={"PARITY_MIRROR": str(pilot)})
    assert done.returncode == 0, done.stderr
    assert str(pilot) not in (project / "metrics/sources.json").read_text()
    assert str(ROOT) not in (project / "metrics/sources.json").read_text()
