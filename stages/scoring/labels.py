"""Labels by greedy generation: what the model says, not which label it finds likelier.

Source of the rules: the published execution record, `evaluation.sft`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from stages.protocol import LabelScorer


def answer(text: str) -> str:
    """Generated text as it is compared: up to the first newline, stripped, case-folded."""
    return text.split("\n", 1)[0].strip().casefold()


def judge(row: int, expected: str, text: str, labels: Sequence[str]) -> dict[str, Any]:
    """One prediction: anything but one of `labels` is invalid, and counts as wrong."""
    said = answer(text)
    return {"row": row, "label": expected, "text": text, "valid": said in labels, "correct": said == expected}


@torch.inference_mode()
def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], scorer: LabelScorer
) -> list[str]:
    """What the model says after each prompt, up to the end of text; inputs are never cut.

    Prompts run sorted by length, so that batches hold little padding; answers come back in the given order.
    """
    ids = tokenizer(list(prompts))["input_ids"]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = GenerationConfig(do_sample=False, max_new_tokens=scorer.max_new_tokens, eos_token_id=eos, pad_token_id=pad)
    texts = [""] * len(ids)
    for start in range(0, len(order), scorer.batch_size):
        batch = order[start : start + scorer.batch_size]
        width = len(ids[batch[-1]])
        padded = torch.tensor([[pad] * (width - len(ids[i])) + ids[i] for i in batch], device=model.device)
        mask = torch.tensor([[0] * (width - len(ids[i])) + [1] * len(ids[i]) for i in batch], device=model.device)
        out = model.generate(input_ids=padded, attention_mask=mask, generation_config=config)[:, width:].tolist()
        for i, new in zip(batch, out, strict=True):
            texts[i] = tokenizer.decode(new[: new.index(eos)] if eos in new else new)
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
