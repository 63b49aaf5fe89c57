"""Next-token NLL over whole paragraphs through overlapping windows, in FP32.

Every token but a paragraph's first is scored exactly once, in the first window that holds it. Paragraphs are not
averaged: total NLL over total tokens. Source of the rules: the published execution record, `evaluation.pretrain`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages.protocol import WindowScorer
from stages.scoring.logits import target_nll
from stages.scoring.windows import Window, windows

# The part of a batch that may be padding. A batch more costs more than this on a small model, less on a large one.
PADDING = 1 / 32


def batches(todo: Sequence[Window], budget: int) -> Iterator[list[Window]]:
    """Windows of like length together, each batch of at most `budget` tokens, next to none of them padding."""
    batch: list[Window] = []
    held = 0
    for window in sorted(todo, key=lambda window: window.end - window.start):
        length = window.end - window.start
        area = (len(batch) + 1) * length
        if batch and (area > budget or area - held - length > PADDING * area):
            yield batch
            batch, held = [], 0
        batch.append(window)
        held += length
    if batch:
        yield batch


def batch_nll(model: PreTrainedModel, tokens: Sequence[Sequence[int]], batch: Sequence[Window]) -> torch.Tensor:
    """NLL of each scored token of a batch, window after window.

    Padded on the right: under causal attention no scored token sees padding. A window's last token is only a target.
    """
    lengths = torch.tensor([[window.end - window.start] for window in batch])
    first = torch.tensor([[window.first - window.start] for window in batch])
    width = int(lengths.max())
    ids = torch.tensor([(*tokens[w.paragraph][w.start : w.end], *[0] * (width - w.end + w.start)) for w in batch])
    position = torch.arange(1, width)
    # Found before it is sent: to find them on a GPU is to wait for it.
    scored = ((position >= first) & (position < lengths)).flatten().nonzero()[:, 0]
    targets = ids[:, 1:].flatten()[scored].to(model.device)
    hidden = model.base_model(input_ids=ids[:, :-1].to(model.device), use_cache=False).last_hidden_state
    return target_nll(model, hidden.flatten(0, 1)[scored.to(model.device)], targets)


@torch.inference_mode()
def paragraph_nll(model: PreTrainedModel, tokens: Sequence[Sequence[int]], scorer: WindowScorer) -> list[float]:
    """Summed NLL of each paragraph's tokens but its first; at most `batch_size` whole windows of tokens at a time."""
    todo = [window for i, ids in enumerate(tokens) for window in windows(i, len(ids), scorer)]
    totals = torch.zeros(len(tokens), dtype=torch.float64)
    for batch in batches(todo, scorer.batch_size * scorer.max_window_tokens):
        paragraph = torch.tensor([window.paragraph for window in batch])
        scored = torch.tensor([window.end - window.first for window in batch])
        totals.index_add_(0, paragraph.repeat_interleave(scored), batch_nll(model, tokens, batch).cpu())
    return totals.tolist()


def score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, str]], scorer: WindowScorer
) -> list[dict[str, Any]]:
    """Predictions for rows of `text`: per paragraph its scored tokens and their summed NLL."""
    tokens = tokenizer([row["text"] for row in rows])["input_ids"]
    totals = paragraph_nll(model, tokens, scorer)
    return [
        {"row": i, "tokens": len(ids) - 1, "nll": nll} for i, (ids, nll) in enumerate(zip(tokens, totals, strict=True))
    ]
