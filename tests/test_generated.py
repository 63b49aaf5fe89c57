"""Promise: the embedded corpora and model are the same bytes everywhere, and a task that has to be learned."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stages.command import ParityError
from stages.corpora import generated
from stages.corpora.select import fold, select_sft
from stages.corpora.sources import snapshot
from stages.prepare import prepare
from stages.protocol import Protocol, read_protocol


def test_the_embedded_pins_are_what_the_generator_makes(embedded: Protocol, tmp_path: Path) -> None:
    taken = snapshot(embedded, None, tmp_path / "raw")
    assert {entry["source"] for entry in taken.values()} == {"generated"}
    for task in ("sft", "pretrain"):
        prepare(embedded, task, tmp_path / "raw", tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("id: generated/sentiment -> id: generated/feelings", "found the generated 'generated/feelings', expected one"),
        ("vocab_size: 768 -> vocab_size: 100", "vocab_size: found 100, a tokenizer has at least 257"),
    ],
)
def test_what_cannot_be_generated_is_said_by_its_key(project: Path, tmp_path: Path, change: str, said: str) -> None:
    before, after = change.split(" -> ")
    path = project / "protocols/embedded.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ParityError, match=said):
        snapshot(read_protocol("embedded", project), None, tmp_path / "raw")


def test_a_prompt_may_hold_other_braces(embedded: Protocol, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    corpora = [embedded.corpora.sft, embedded.corpora.pretrain]
    generated.write_tokenizer(corpora, "{sentence} {0} {x", 768, tmp_path / "tokenizer")


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
