"""What a training run will process, step by step, before a second of it is spent.

Follows the trainer: accelerate's seedable sampler orders the rows of each epoch, micro-batches are padded to their
longest row, and an epoch's last optimizer step takes the micro-batches that are left. Several processes take the
micro-batches in turn; so that none waits for another, an epoch's end is filled up with rows from its start.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stages.protocol import Recipe


class Planned(NamedTuple):
    """Totals up to and including an optimizer step."""

    step: int
    rows: int
    tokens: int  # without padding: the trainer's `num_tokens`
    padded_tokens: int

    def flos(self, parameters: int) -> int:
        """The trainer's `total_flos`: 6 per padded token and non-embedding parameter."""
        return 6 * parameters * self.padded_tokens


def micro_batches(rows: int, size: int, seed: int, processes: int) -> Iterator[list[list[int]]]:
    """Per epoch, the row numbers of each micro-batch, those of the processes in turn."""
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
    from torch.utils.data import BatchSampler

    sampler = SeedableRandomSampler(range(rows), data_seed=seed)
    batches = BatchSampler(sampler, size, drop_last=False)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        if processes == 1:
            yield list(batches)
        else:
            shares = [BatchSamplerShard(batches, processes, process) for process in range(processes)]
            yield [batch for together in zip(*shares, strict=True) for batch in together]


def plan(lengths: Sequence[int], recipe: Recipe, seed: int, processes: int = 1) -> list[Planned]:
    """Totals after each of the recipe's optimizer steps, for rows of `lengths` tokens."""
    steps: list[Planned] = []
    total = Planned(0, 0, 0, 0)
    for epoch in micro_batches(len(lengths), recipe.per_device_train_batch_size, seed, processes):
        for start in range(0, len(epoch), recipe.gradient_accumulation_steps):
            step = epoch[start : start + recipe.gradient_accumulation_steps]
            sizes = [[lengths[row] for row in batch] for batch in step]
            total = Planned(
                total.step + 1,
                total.rows + sum(map(len, sizes)),
                total.tokens + sum(map(sum, sizes)),
                total.padded_tokens + sum(max(batch) * len(batch) for batch in sizes),
            )
            steps.append(total)
            if total.step == recipe.max_steps:
                return steps
    raise AssertionError("unreachable: the sampler has no last epoch")
