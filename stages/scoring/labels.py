"""Labels by greedy generation: what the model says, not which label it finds likelier.

Source of the rules: the published execution record, `evaluation.sft`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from stages.protocol import LabelScorer
from stages.scoring.logits import likeliest

# The protocol's batch size counts prompts of this many tokens; shorter ones come in larger batches.
ROW = 512


def answer(text: str) -> str:
    """Generated text as it is compared: up to the first newline, stripped, case-folded."""
    return text.split("\n", 1)[0].strip().casefold()


def judge(row: int, expected: str, text: str, labels: Sequence[str]) -> dict[str, Any]:
    """One prediction: anything but one of `labels` is invalid, and counts as wrong."""
    said = answer(text)
    return {"row": row, "label": expected, "text": text, "valid": said in labels, "correct": said == expected}


def shared_prefix(ids: Sequence[list[int]]) -> list[int]:
    """The tokens that all prompts begin with, one of each prompt's own left over."""
    first, last, most = min(ids), max(ids), min(map(len, ids)) - 1
    return first[: next((at for at in range(most) if first[at] != last[at]), most)]


def batches(ids: Sequence[list[int]], budget: int) -> Iterator[list[int]]:
    """Prompts of like length together, by their numbers; each batch is one prompt or at most `budget` tokens."""
    batch: list[int] = []
    for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        if batch and (len(batch) + 1) * len(ids[i]) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def key_values(model: PreTrainedModel, prefix: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of `prefix`, layer by layer."""
    cache = DynamicCache()
    if prefix:
        model.base_model(torch.tensor([prefix], device=model.device), past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def greedy(
    model: PreTrainedModel,
    prefix: Sequence[tuple[torch.Tensor, ...]],
    prompts: Sequence[list[int]],
    most: int,
    eos: int,
) -> list[list[int]]:
    """The likeliest tokens after each prompt, `most` at most and up to the end of text; rows that reach it leave.

    Prompts are padded on the right: no token of theirs sees the padding, and the mask hides it from those generated.
    """
    rows, width, device = list(range(len(prompts))), max(map(len, prompts)), model.device
    cache = DynamicCache([[part.expand(len(rows), -1, -1, -1) for part in layer] for layer in prefix])
    held = cache.get_seq_length()
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts], device=device)
    column = torch.arange(width, device=device)
    mask = torch.cat([lengths.new_ones(len(rows), held), (column < lengths[:, None]).long()], 1)
    position, last = held + column[None], lengths - 1
    new: list[list[int]] = [[] for _ in prompts]
    for step in range(most):
        hidden = model.base_model(
            ids, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True
        ).last_hidden_state[torch.arange(len(rows), device=device), last]
        chosen = likeliest(model, hidden)
        said = chosen.tolist()
        for row, token in zip(rows, said, strict=True):
            new[row] += [token] if token != eos else []
        going = [at for at, token in enumerate(said) if token != eos]
        if not going:
            break
        if len(going) < len(rows):
            kept = torch.tensor(going, device=device)
            cache.batch_select_indices(kept)
            rows, chosen, lengths, mask = [rows[at] for at in going], chosen[kept], lengths[kept], mask[kept]
        ids, mask = chosen[:, None], torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        position, last = (held + lengths + step)[:, None], torch.zeros_like(lengths)
    return new


@torch.inference_mode()
def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], scorer: LabelScorer
) -> list[str]:
    """What the model says after each prompt, up to the end of text, in the given order; inputs are never cut.

    The text of `model.generate` without sampling: what it does for batches padded to their longest is done here for
    prompts of like length, after what they all begin with has been read once.
    """
    ids = tokenizer(list(prompts))["input_ids"]
    shared = shared_prefix(ids)
    prefix, own = key_values(model, shared), [prompt[len(shared) :] for prompt in ids]
    texts = [""] * len(ids)
    for batch in batches(ids, scorer.batch_size * ROW):
        found = greedy(model, prefix, [own[i] for i in batch], scorer.max_new_tokens, tokenizer.eos_token_id)
        for i, new in zip(batch, found, strict=True):
            texts[i] = tokenizer.decode(new)
    return texts


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, str]],
    scorer: LabelScorer,
    labels: Sequence[str],
) -> list[dict[str, Any]]:
    """Predictions for rows of `prompt` and `completion`, the completion being the expected label."""
    texts = generate(model, tokenizer, [row["prompt"] for row in rows], scorer)
    return [
        judge(i, answer(row["completion"]), text, labels) for i, (row, text) in enumerate(zip(rows, texts, strict=True))
    ]
