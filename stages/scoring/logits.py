"""The vocabulary projection, tile by tile: what is wanted of the logits is taken before the next tile is made.

Written out, the logits of the published evaluation are 286,056 x 151,936 floats, 174 GB; the projection reads 0.5 GB.
"""

from collections.abc import Iterator

import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

# Rows of a tile at most, and its floats: it stays in a core's own cache (1 MiB, over two cores) or, with all that it is
# made from and what is made of it, in an L4's (28 of 48 MiB), and the product is large enough for full speed.
ROWS = {"cpu": 512, "cuda": 1024}
AREA = {"cpu": 1 << 18, "cuda": 1 << 21}


def width(hidden: torch.Tensor) -> int:
    """Columns of a tile."""
    return max(1, AREA[hidden.device.type] // len(hidden))


def tiles(weight: torch.Tensor, hidden: torch.Tensor) -> Iterator[torch.Tensor]:
    """Logits of `hidden` [N, H] for one run of the vocabulary after another, in FP32."""
    for part in torch.split(weight, width(hidden)):
        yield linear(hidden, part).float()


def log_total(tile: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exponentials of each row; row by row, where `logsumexp` goes over the whole tile five times."""
    return tile[:, 0] - tile.log_softmax(1)[:, 0]


def target_nll(model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """NLL [N] in float64 of `targets` [N] given the hidden states [N, H] before each."""
    weight, rows = model.get_output_embeddings().weight, ROWS[hidden.device.type]
    losses = []
    for part, chosen in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        total = torch.stack([log_total(tile) for tile in tiles(weight, part)]).logsumexp(0)
        losses.append(total.double() - (part * weight[chosen]).sum(1).double())
    return torch.cat(losses)


def likeliest(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """The token [N] of the highest logit for each hidden state [N, H], the first of equal ones.

    Which tile holds it is found for all rows; where in it, which takes as long as to make the tile, once per row.
    """
    weight = model.get_output_embeddings().weight
    winner = torch.stack([tile.amax(1) for tile in tiles(weight, hidden)]).argmax(0)
    parts, token = torch.split(weight, width(hidden)), torch.empty_like(winner)
    for at in sorted(set(winner.tolist())):
        rows = (winner == at).nonzero()[:, 0]
        token[rows] = linear(hidden[rows], parts[at]).float().argmax(1) + at * width(hidden)
    return token
