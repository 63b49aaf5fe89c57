"""Next-token NLL over whole paragraphs through overlapping windows, in FP32.

Every token but a paragraph's first is scored exactly once, in the first window that holds it. Paragraphs are not
averaged: total NLL over total tokens. Source of the rules: the published execution record, `evaluation.pretrain`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages.protocol import WindowScorer
from stages.scoring.windows import windows

# Logits in flight: 2^24 floats, 64 MiB, whatever the vocabulary.
LOGITS = 1 << 24


def target_nll(model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """NLL [N] in float64 of `targets` [N] given the hidden states [N, H] before each; logits only for these."""
    head = model.get_output_embeddings()
    size = max(1, LOGITS // model.config.vocab_size)
    pieces = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    return torch.cat([cross_entropy(head(h).float(), t, reduction="none").double() for h, t in pieces])


@torch.inference_mode()
def paragraph_nll(model: PreTrainedModel, tokens: Sequence[Sequence[int]], scorer: WindowScorer) -> list[float]:
    """Summed NLL of each paragraph's tokens but its first.

    Windows run sorted by length, padded on the right: under causal attention no scored token sees padding.
    """
    todo = [window for i, ids in enumerate(tokens) for window in windows(i, len(ids), scorer)]
    todo.sort(key=lambda window: window.end - window.start)
    totals = torch.zeros(len(tokens), dtype=torch.float64)
    for at in range(0, len(todo), scorer.batch_size):
        batch = todo[at : at + scorer.batch_size]
        width = batch[-1].end - batch[-1].start
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        scored = torch.zeros(len(batch), width, dtype=torch.bool)
        for row, window in enumerate(batch):
            ids[row, : window.end - window.start] = torch.tensor(tokens[window.paragraph][window.start : window.end])
            scored[row, window.first - window.start : window.end - window.start] = True
        ids, mask = ids.to(model.device), scored.to(model.device)
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        losses = target_nll(model, hidden[:, :-1][mask[:, 1:]], ids[mask]).cpu()
        owner = torch.tensor([window.paragraph for window in batch]).repeat_interleave(scored.sum(1))
        totals.index_add_(0, owner, losses)
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
