"""Promise: rows are selected and serialized as recorded, streaming, and the published files come out of it."""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.command import ParityError
from stages.corpora.rows import prepared_rows, read_columns
from stages.corpora.select import ClassQuotas, fold, select_pretrain, select_sft
from stages.prepare import prepare
from stages.protocol import PretrainSelection, Protocol, SftSelection
from tests.conftest import run

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
