"""Training rows as tokens, exactly as TRL tokenizes them, and the refusal of rows that would train on nothing.

Needs only `tokenizers`, so that a plan can be made without torch.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.command import ParityError
from stages.evidence.digests import read_json
from stages.jobs import explained

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(folder: Path) -> "tuple[Tokenizer, str]":
    """The tokenizer in `folder` and its end-of-text token."""
    from tokenizers import Tokenizer

    if not (folder / "tokenizer.json").is_file():
        raise ParityError(f"{folder / 'tokenizer.json'}: not found")
    config = read_json(folder / "tokenizer_config.json")
    eos = config.get("eos_token") if isinstance(config, dict) else None
    eos = eos.get("content") if isinstance(eos, dict) else eos
    if not isinstance(eos, str) or not eos:
        raise ParityError(f"{folder / 'tokenizer_config.json'}: no eos_token")
    with explained(folder):
        return Tokenizer.from_file(str(folder / "tokenizer.json")), eos


def row_text(row: dict[str, Any]) -> str:
    return str(row["text"] if "text" in row else row["prompt"] + row["completion"])


def tokenize(rows: Sequence[dict[str, Any]], folder: Path, max_length: int, source: Path) -> list[list[int]]:
    """Token ids per row as the trainer sees them: end-of-text appended, then cut to `max_length`.

    Raises ParityError, naming `source` and the line, for a labelled row whose prompt or label would be cut, for one
    whose prompt does not tokenize to a prefix of the whole, and for a row that keeps no supervised token.
    """
    tokenizer, eos = load_tokenizer(folder)
    texts = [text if (text := row_text(row)).endswith(eos) else text + eos for row in rows]
    with explained(folder):
        tokens = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    if "prompt" in rows[0]:
        prompts = tokenizer.encode_batch([row["prompt"] for row in rows], add_special_tokens=False)
        for number, (ids, prompt) in enumerate(zip(tokens, prompts, strict=True), 1):
            check_labelled(ids, prompt.ids, max_length, f"{source}:{number}")
    for number, ids in enumerate(tokens, 1):
        if len(ids) < 2:
            raise ParityError(f"{source}:{number}: {len(ids)} token with the end of text, nothing to predict")
    return [ids[:max_length] for ids in tokens]


def check_labelled(ids: list[int], prompt: list[int], max_length: int, where: str) -> None:
    if len(ids) > max_length:
        raise ParityError(
            f"{where}: {len(ids)} tokens, max_length is {max_length}: its instruction or label would be cut"
        )
    if ids[: len(prompt)] != prompt:
        raise ParityError(f"{where}: the prompt's tokens are no prefix of the row's, so the label cannot be told apart")
    if len(ids) - len(prompt) < 2:  # the end of text alone is no label
        raise ParityError(f"{where}: no token of the completion is supervised")


def training_tokens_sha256(rows: Iterable[Sequence[int]]) -> str:
    """SHA-256 over the rows in dataset order, each a little-endian uint32 length and that many uint32 token ids."""
    digest = hashlib.sha256()
    for ids in rows:
        digest.update(struct.pack(f"<I{len(ids)}I", len(ids), *ids))
    return digest.hexdigest()
