"""Promise: every target token is scored exactly once, in FP32, and a label is what the model says."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from stages.corpora import generated
from stages.corpora.rows import read_columns
from stages.protocol import LabelScorer, Protocol, WindowScorer
from stages.scoring import labels, logits, nll
from stages.scoring.metrics import label_metrics, nll_metrics
from stages.scoring.windows import windows

PILOT_WINDOWS = WindowScorer(max_window_tokens=256, scoring_stride=128, batch_size=16)


def load(folder: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@given(st.integers(1, 2000), st.integers(2, 300), st.data())
@settings(deadline=None)
def test_every_token_but_the_first_is_scored_once_with_the_most_context_its_window_gives(
    length: int, size: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, size - 1))
    scorer = WindowScorer(max_window_tokens=size, scoring_stride=stride, batch_size=1)
    found = windows(0, length, scorer)
    scored = [token for window in found for token in range(window.first, window.end)]
    assert scored == list(range(1, length))
    for window in found:
        assert window.end - window.start <= size
        # The token scored first still sees all that the overlap leaves, and never nothing.
        assert window.first - window.start >= min(size - stride, window.first)


def reference(model: Any, ids: Sequence[int], size: int, stride: int) -> float:
    """One window at a time, all logits, as the record words it."""
    total, done = 0.0, 1
    for start in range(0, len(ids), stride):
        window = torch.tensor([ids[start : start + size]])
        with torch.inference_mode():
            logprobs = model(window).logits[0].double().log_softmax(-1)
        for token in range(done, start + window.shape[1]):
            total -= logprobs[token - start - 1, ids[token]].item()
        done = start + window.shape[1]
        if done == len(ids):
            break
    return total


def test_window_nll_equals_a_plain_reference_on_real_paragraphs(pilot: Path, qwen_model: Path) -> None:
    model, tokenizer = load(qwen_model)
    folder = pilot / "Salesforce/wikitext/wikitext-2-raw-v1"
    files = [folder / "test.parquet", folder / "train-head.parquet"]
    texts = sorted((text for (text,) in read_columns(files, {"text": "string"})), key=len, reverse=True)
    ids = [tokenizer(text)["input_ids"] for text in (*texts[:20], *texts[400:420], *texts[1500:1520])]
    chosen = [min((x for x in ids if len(x) > longer), key=len) for longer in (1, 256, 384, 512)]
    # The longest real paragraph has 641 tokens; a longer one is made of two.
    chosen.append(ids[0] + ids[1])
    assert len(chosen[-1]) > 1000
    found = nll.paragraph_nll(model, chosen, PILOT_WINDOWS)
    for ids_, value in zip(chosen, found, strict=True):
        assert value == pytest.approx(reference(model, ids_, 256, 128), rel=1e-6)


def test_window_nll_equals_the_librarys_own_loss_on_short_paragraphs(tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    texts = [" The river floods near the mill of Baren \n", " In 1804 , the comet faded ." * 3]
    predictions = nll.score(model, tokenizer, [{"text": text} for text in texts], PILOT_WINDOWS)
    for text, row in zip(texts, predictions, strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            loss = model(ids, labels=ids).loss.item()
        assert row["tokens"] == ids.shape[1] - 1
        assert row["nll"] == pytest.approx(loss * row["tokens"], rel=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_the_batch_size_changes_the_sum_within_rounding_only(tiny_model: Path, batch_size: int) -> None:
    model, _ = load(tiny_model)
    ids = [[(7 * i + j) % 500 for j in range(3 + 41 * i)] for i in range(9)] + [[5]]
    windows_of = WindowScorer(max_window_tokens=64, scoring_stride=32, batch_size=batch_size)
    found = nll.paragraph_nll(model, ids, windows_of)
    assert found == pytest.approx([reference(model, x, 64, 32) for x in ids], rel=1e-6)
    assert found[-1] == 0.0


@given(st.lists(st.integers(0, 700), max_size=60), st.integers(1, 20))
@settings(deadline=None)
def test_batches_hold_every_window_once_within_their_budget_and_next_to_no_padding(
    lengths: list[int], batch_size: int
) -> None:
    scorer = WindowScorer(max_window_tokens=256, scoring_stride=128, batch_size=batch_size)
    todo = [window for i, length in enumerate(lengths) for window in windows(i, length, scorer)]
    found = list(nll.batches(todo, batch_size * 256))
    assert sorted(window for batch in found for window in batch) == sorted(todo)
    for batch in found:
        sizes = [window.end - window.start for window in batch]
        area = len(sizes) * max(sizes)
        assert area <= batch_size * 256
        assert area - sum(sizes) <= area * nll.PADDING


@pytest.mark.parametrize("folder", ["tiny_model", "qwen_model"])
def test_the_tiles_of_logits_change_no_loss(folder: str, request: pytest.FixtureRequest) -> None:
    model, _ = load(request.getfixturevalue(folder))
    hidden = 3 * torch.randn(530, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(530) * 7919 % model.config.vocab_size  # from the first tile to the last
    with torch.inference_mode():
        found = logits.target_nll(model, hidden, targets)
        expected = [-model.lm_head(h).double().log_softmax(-1)[t].item() for h, t in zip(hidden, targets, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=2e-6)


def test_scoring_twice_gives_the_same_bytes(tiny_model: Path) -> None:
    model, _ = load(tiny_model)
    ids = [[(7 * i + j) % 500 for j in range(3 + 41 * i)] for i in range(9)]
    assert nll.paragraph_nll(model, ids, PILOT_WINDOWS) == nll.paragraph_nll(model, ids, PILOT_WINDOWS)


def test_paragraphs_are_not_averaged() -> None:
    rows = [{"row": 0, "tokens": 1, "nll": 5.0}, {"row": 1, "tokens": 99, "nll": 99.0}]
    assert nll_metrics(rows) == {"rows": 2, "tokens": 100, "nll": 1.04, "perplexity": math.exp(1.04)}


@pytest.mark.parametrize(
    ("text", "valid", "correct"),
    [
        (" positive", True, True),
        (" POSITIVE \nnegative", True, True),
        ("Positive\n", True, True),
        (" negative", True, False),
        ("\n positive", False, False),
        (" positive.", False, False),
        (" positive negative", False, False),
        ("", False, False),
        (" neutral", False, False),
    ],
)
def test_only_the_two_labels_are_valid_and_all_else_is_wrong(text: str, valid: bool, correct: bool) -> None:
    judged = labels.judge(0, "positive", text, ["negative", "positive"])
    assert (judged["valid"], judged["correct"], judged["text"]) == (valid, correct, text)


def test_accuracy_and_format_validity_come_from_the_predictions() -> None:
    said = [" positive", "?", " negative", " positive"]
    rows = [labels.judge(i, "positive", text, ["negative", "positive"]) for i, text in enumerate(said)]
    assert label_metrics(rows) == {"rows": 4, "correct": 2, "valid": 3, "accuracy": 0.5, "format_validity": 0.75}


def test_generated_text_equals_one_prompt_at_a_time_and_keeps_the_given_order(tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    prompts = [f"Sentence: the plot is {'not ' * (i % 5)}vivid {i}\nSentiment:" for i in range(11)]
    scorer = LabelScorer(max_new_tokens=4, batch_size=4)
    found = labels.generate(model, tokenizer, prompts, scorer)
    for prompt, text in zip(prompts, found, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        for _ in range(4):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        new = ids[len(tokenizer(prompt)["input_ids"]) :]
        assert text == tokenizer.decode([token for token in new if token != tokenizer.eos_token_id])


def recorded(model: Any, tokenizer: Any, prompts: Sequence[str], most: int) -> list[list[int]]:
    """Tokens from the library's own generation as the record has it: batches of 16 in the given order, padded left."""
    eos, pad, found = tokenizer.eos_token_id, tokenizer.pad_token_id, []
    config = GenerationConfig(do_sample=False, max_new_tokens=most, eos_token_id=eos, pad_token_id=pad)
    for at in range(0, len(prompts), 16):
        batch = tokenizer(prompts[at : at + 16], return_tensors="pt", padding=True, padding_side="left")
        out = model.generate(**batch, generation_config=config)[:, batch["input_ids"].shape[1] :].tolist()
        found += [new[: new.index(eos)] if eos in new else new for new in out]
    return found


@pytest.fixture
def prompts(embedded: Protocol) -> list[str]:
    """Prompts of the embedded task, and three that are like no other in length."""
    texts = [row["sentence"] for row in generated.sentences(11)["validation"][:60]]
    texts[7:7] = ["not " * 90, "x", "vivid " * 30]
    return [embedded.select.sft.prompt.replace("{sentence}", text) for text in texts]


@pytest.mark.parametrize("folder", ["tiny_model", "qwen_model"])
def test_generated_text_equals_the_librarys_in_the_recorded_batches(
    folder: str, prompts: list[str], request: pytest.FixtureRequest
) -> None:
    model, tokenizer = load(request.getfixturevalue(folder))
    expected = [tokenizer.decode(new) for new in recorded(model, tokenizer, prompts, 4)]
    for batch_size in (1, 16):
        scorer = LabelScorer(max_new_tokens=4, batch_size=batch_size)
        assert labels.generate(model, tokenizer, prompts, scorer) == expected
    assert len(set(expected)) > 5


def test_rows_that_end_early_leave_without_a_trace_in_the_others(tiny_model: Path, prompts: list[str]) -> None:
    model, tokenizer = load(tiny_model)
    said = recorded(model, tokenizer, prompts, 6)
    common = Counter(token for new in said for token in new[1:4]).most_common(1)[0][0]
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(common)
    expected = recorded(model, tokenizer, prompts, 6)
    assert len({len(new) for new in expected}) > 2
    found = labels.generate(model, tokenizer, prompts, LabelScorer(max_new_tokens=6, batch_size=16))
    assert found == [tokenizer.decode(new) for new in expected]


def test_prompts_that_share_nothing_and_a_single_one_are_answered(tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    scorer = LabelScorer(max_new_tokens=4, batch_size=16)
    for few in (["the plot", "A river"], ["the plot is vivid"], ["the plot"] * 3):
        expected = [tokenizer.decode(new) for new in recorded(model, tokenizer, few, 4)]
        assert labels.generate(model, tokenizer, few, scorer) == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5))
def test_what_is_shared_begins_every_prompt_and_is_none_of_them_whole(ids: list[list[int]]) -> None:
    shared = labels.shared_prefix(ids)
    assert all(prompt[: len(shared)] == shared and len(prompt) > len(shared) for prompt in ids)
    longer = {tuple(prompt[: len(shared) + 1]) for prompt in ids}
    assert len(longer) > 1 or min(map(len, ids)) == len(shared) + 1
