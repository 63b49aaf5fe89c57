"""Label generation against `model.generate` in the recorded batches of 16, and against `transformers.pipeline`."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from bench import models
from bench.measure import Record, interleaved, profiled, synchronized

CASES = ("embedded", "vocabulary")
RECORDED = "model.generate, 16 at a time"
PIPELINE = "transformers.pipeline"


def recorded(case: models.Case, prompts: Sequence[str]) -> list[str]:
    """The library's generation in batches as recorded: the given order, padded on the left."""
    from transformers import GenerationConfig

    eos, pad, texts = case.tokenizer.eos_token_id, case.tokenizer.pad_token_id, []
    most, size = case.labels.max_new_tokens, case.labels.batch_size
    config = GenerationConfig(do_sample=False, max_new_tokens=most, eos_token_id=eos, pad_token_id=pad)
    for at in range(0, len(prompts), size):
        batch = case.tokenizer(prompts[at : at + size], return_tensors="pt", padding=True, padding_side="left")
        out = case.model.generate(**batch.to(case.model.device), generation_config=config)
        found = out[:, batch["input_ids"].shape[1] :].tolist()
        texts += [case.tokenizer.decode(new[: new.index(eos)] if eos in new else new) for new in found]
    return texts


def pipeline(case: models.Case) -> Any:
    """The library's pipeline, batched alike; it wants the tokenizer to pad on the left by itself."""
    from copy import deepcopy

    from transformers import GenerationConfig
    from transformers import pipeline as make

    tokenizer = deepcopy(case.tokenizer)
    tokenizer.padding_side = "left"
    size, most = case.labels.batch_size, case.labels.max_new_tokens
    config = GenerationConfig(
        do_sample=False, max_new_tokens=most, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    made = make("text-generation", model=case.model, tokenizer=tokenizer, device=case.model.device, batch_size=size)
    return lambda prompts: [
        row[0]["generated_text"] for row in made(list(prompts), return_full_text=False, generation_config=config)
    ]


def work(case: models.Case, prompts: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """What cannot be saved: each prompt's own tokens and what they share once, and each token that is said."""
    from stages.scoring.labels import shared_prefix

    ids = case.tokenizer(list(prompts))["input_ids"]
    shared = len(shared_prefix(ids))
    said = len(texts) * case.labels.max_new_tokens
    return {"flop": models.flop(case.model, shared + sum(len(row) - shared for row in ids) + said - len(texts), said)}


def measure_case(record: Record, name: str, given: Namespace) -> None:
    from stages.scoring.labels import generate

    case = models.load(name, given.device)
    count = max(16, round(len(case.prompts) * given.scale))
    prompts, piped = case.prompts[:count], pipeline(case)
    works = {
        "this project": lambda: generate(case.model, case.tokenizer, prompts, case.labels),
        RECORDED: lambda: recorded(case, prompts),
        PIPELINE: lambda: piped(prompts),
    }
    works = {key: synchronized(given.device, work) for key, work in works.items()}
    interleaved(works, 1)
    seconds, texts = interleaved(works, given.rounds)
    ours = texts.pop("this project")
    for other, said in texts.items():
        if differing := sum(a != b for a, b in zip(ours, said, strict=True)):
            raise SystemExit(f"bench: {name}: {differing} of {len(ours)} texts are not those of {other}")
    for other, goal in ((RECORDED, 3.0), (PIPELINE, 3.0)):
        pair = {key: seconds[key] for key in ("this project", other)}
        equal = f"all {len(prompts)} texts equal"
        least = work(case, prompts, ours)
        record.line(name, pair, len(prompts), "rows/s", {other: goal}, equal=equal, work=least)
    chosen = [prompts[: max(1, len(prompts) * part // 16)] for part in (1, 4, 16)]
    grown = {len(part): (lambda part=part: generate(case.model, case.tokenizer, part, case.labels)) for part in chosen}
    record.grow(name, "rows", grown, given.rounds)
    for key, work_ in works.items():
        record.profile[f"{name}, {key}"] = profiled(given.device, work_)


def measure(given: Namespace) -> Record:
    record = Record("Label generation")
    record.notes += models.notes(list(CASES))
    record.notes.append(
        "The models are untrained and never end a text, so every row takes all its tokens. A trained one says its "
        "label and ends, for all three alike."
    )
    for name in given.models or CASES:
        if name in CASES:
            measure_case(record, name, given)
    return record
