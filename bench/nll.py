"""Window NLL against the plain loop and lm-evaluation-harness: target tokens per second at equal total NLL."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from bench import models
from bench.measure import Record, interleaved, profiled, synchronized
from stages.scoring.windows import Window, windows

CASES = {"embedded": 96, "vocabulary": 48, "qwen": 8}  # paragraphs scored
HARNESS = "lm-eval, our windows"
ROLLING = "lm-eval, its own windows"
GOALS = {"embedded": (3.0, 1.5), "vocabulary": (3.0, 1.5), "qwen": (1.0, 1.0)}


def plain(model: Any, tokens: Sequence[Sequence[int]], todo: Sequence[Window]) -> float:
    """One window at a time, logits for every position."""
    import torch

    total = 0.0
    for window in todo:
        batch = torch.tensor([tokens[window.paragraph][window.start : window.end]], device=model.device)
        labels = batch.clone()
        labels[0, : window.first - window.start] = -100
        with torch.inference_mode():
            loss = model(batch, labels=labels).loss
        total += loss.item() * (window.end - window.first)
    return total


def harness(case: models.Case, device: str) -> Any:
    """lm-eval's own model around ours, in batches of the protocol's size."""
    from lm_eval.models.huggingface import HFLM

    most, batch = case.windows.max_window_tokens, case.windows.batch_size
    return HFLM(case.model, tokenizer=case.tokenizer, max_length=most, batch_size=batch, device=device)


def asked(tokens: Sequence[Sequence[int]], todo: Sequence[Window]) -> list[Any]:
    """Our windows as the harness's requests: context, and what follows it."""
    cut = [(tokens[w.paragraph][w.start : w.first], tokens[w.paragraph][w.first : w.end]) for w in todo]
    return [(("", ""), list(context), list(rest)) for context, rest in cut]


def rolling(lm: Any, texts: Sequence[str]) -> float:
    from lm_eval.api.instance import Instance

    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    return -sum(lm.loglikelihood_rolling(requests, disable_tqdm=True))


def measure_case(record: Record, name: str, given: Namespace) -> None:
    from stages.scoring.nll import paragraph_nll

    case = models.load(name, given.device)
    count = max(1, round(CASES[name] * given.scale))
    step = max(1, len(case.paragraphs) // count)
    texts = case.paragraphs[::step][:count]
    tokens = case.tokenizer(texts)["input_ids"]
    todo = [window for i, ids in enumerate(tokens) for window in windows(i, len(ids), case.windows)]
    lm, requests = harness(case, given.device), asked(tokens, todo)
    works = {
        "this project": lambda: sum(paragraph_nll(case.model, tokens, case.windows)),
        "plain loop": lambda: plain(case.model, tokens, todo),
        HARNESS: lambda: -sum(value for value, _ in lm._loglikelihood_tokens(requests, disable_tqdm=True)),
    }
    if name != "qwen":
        works[ROLLING] = lambda: rolling(lm, texts)
    works = {key: synchronized(given.device, work) for key, work in works.items()}
    interleaved(works, 1)
    seconds, totals = interleaved(works, given.rounds)
    ours = totals["this project"]
    apart = {other: abs(totals[other] - ours) / ours for other in ("plain loop", HARNESS)}
    if max(apart.values()) > 1e-6:
        raise SystemExit(f"bench: {name}: total NLL differs by {apart}, 1e-6 is allowed")
    targets = sum(len(ids) - 1 for ids in tokens)
    read = sum(window.end - window.start - 1 for window in todo)  # a window's last token is only a target
    work = {"flop": models.flop(case.model, read, targets)}
    extra = {"work": work, "equal": f"NLL apart by {max(apart.values()):.0e}"}
    goals = dict(zip(("plain loop", HARNESS), GOALS[name], strict=True))
    own = {key: seconds.pop(key) for key in [ROLLING] if key in seconds}
    record.line(name, seconds, targets, "target tokens/s", goals, **extra)
    if own:
        own = {"this project": seconds["this project"]} | own
        record.line(name, own, targets, "target tokens/s", equal="other windows, other NLL")
    chosen = [tokens[: max(1, len(tokens) * part // 16)] for part in (1, 4, 16)]
    grown = {sum(map(len, part)): (lambda part=part: paragraph_nll(case.model, part, case.windows)) for part in chosen}
    record.grow(name, "tokens", grown, 1 if name == "qwen" else given.rounds)
    for key in ("this project", "plain loop", HARNESS):
        record.profile[f"{name}, {key}"] = profiled(given.device, works[key])


def measure(given: Namespace) -> Record:
    record = Record("Window NLL")
    record.notes += models.notes(list(CASES))
    record.notes.append(
        f"'{HARNESS}' gives the harness exactly our windows through `HFLM._loglikelihood_tokens`, and so the same NLL. "
        f"'{ROLLING}' is its `loglikelihood_rolling`, from the text on: windows that do not overlap, a prefix token, "
        "and the first token scored too, so fewer tokens are read and its NLL is another; its rate is per target token "
        "of ours."
    )
    for name in given.models or CASES:
        measure_case(record, name, given)
    return record
