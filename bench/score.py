"""Window NLL: target tokens per second against the plain loop of one window at a time, at equal total NLL."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from stages.corpora import generated
from stages.protocol import read_protocol


def plain(model: Any, tokens: Sequence[Sequence[int]], size: int, stride: int) -> float:
    """One window at a time, logits for every position."""
    import torch

    from stages.protocol import WindowScorer
    from stages.scoring.windows import windows

    rule, total = WindowScorer(max_window_tokens=size, scoring_stride=stride, batch_size=1), 0.0
    for ids in tokens:
        for window in windows(0, len(ids), rule):
            batch = torch.tensor([ids[window.start : window.end]])
            labels = batch.clone()
            labels[0, : window.first - window.start] = -100
            with torch.inference_mode():
                loss = model(batch, labels=labels).loss
            total += loss.item() * (window.end - window.first)
    return total


def timed(work: Callable[[], float]) -> tuple[float, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def measure(_: list[int]) -> Table:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stages.scoring.nll import paragraph_nll

    protocol = read_protocol("embedded")
    rule = protocol.score.pretrain
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpora = [protocol.corpora.sft, protocol.corpora.pretrain]
        vocabulary = protocol.model.architecture.vocab_size
        generated.write_tokenizer(corpora, protocol.select.sft.prompt, vocabulary, folder)
        generated.write_weights(protocol.model.architecture, 11, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [row["text"] for row in generated.paragraphs(11)["test"] if len(row["text"]) > 100]
    tokens = tokenizer(texts)["input_ids"]
    targets = sum(len(ids) - 1 for ids in tokens)
    table = Table("scorer", "target tokens/s", "ratio", title=f"window NLL, embedded model, {targets:,} target tokens")
    runs = []
    for _ in range(3):  # in turn, so that both meet the same machine
        loop = timed(lambda: plain(model, tokens, rule.max_window_tokens, rule.scoring_stride))
        ours = timed(lambda: sum(paragraph_nll(model, tokens, rule)))
        assert abs(loop[0] - ours[0]) < 1e-6 * loop[0]
        runs.append((targets / loop[1], targets / ours[1]))
    best = [max(column) for column in zip(*runs, strict=True)]
    ratios = sorted(ours / loop for loop, ours in runs)
    table.add_row("one window at a time", f"{best[0]:,.0f}", "1")
    table.add_row("this project", f"{best[1]:,.0f}", f"{ratios[1]:.1f} ({ratios[0]:.1f} to {ratios[2]:.1f})")
    return table
