"""The models and texts that the scorers and the trainer are measured on."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stages.corpora import generated
from stages.corpora.rows import read_columns
from stages.jobs import PROJECT
from stages.protocol import Architecture, LabelScorer, Protocol, WindowScorer, read_protocol

PILOT = PROJECT.parent / "shared" / "pilot"
TOKENIZER = PILOT / "Qwen" / "Qwen2.5-0.5B-tokenizer"
CASES = ("embedded", "vocabulary", "qwen")
ABSENT = (
    "The published pilot's files are not beside the repository (`../shared/pilot`): the texts are generated ones, and "
    "their tokens use the first 768 of the vocabulary."
)


class Case(NamedTuple):
    """A model with the texts it is measured on and the rules of its protocol."""

    name: str
    model: Any
    tokenizer: Any
    paragraphs: list[str]
    prompts: list[str]
    windows: WindowScorer
    labels: LabelScorer


def small(protocol: Protocol, **changes: int) -> Architecture:
    return protocol.model.architecture.model_copy(update=changes)


def architecture(name: str) -> tuple[Protocol, Architecture]:
    protocol = read_protocol("embedded" if name == "embedded" else "pilot", PROJECT)
    shapes = {
        "embedded": protocol.model.architecture,
        "vocabulary": small(
            protocol,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        "qwen": protocol.model.architecture,
    }
    return protocol, shapes[name]


def write_model(folder: Path, name: str) -> None:
    """A random model of the case's shape with its tokenizer."""
    protocol, shape = architecture(name)
    if name != "embedded" and TOKENIZER.is_dir():
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(TOKENIZER / file, folder / file)
    else:
        embedded = read_protocol("embedded", PROJECT)
        corpora = [embedded.corpora.sft, embedded.corpora.pretrain]
        size = embedded.model.architecture.vocab_size
        generated.write_tokenizer(corpora, protocol.select.sft.prompt, size, folder)
    generated.write_weights(shape, 11, folder)


def texts(name: str, protocol: Protocol) -> tuple[list[str], list[str]]:
    """Paragraphs and sentences: the published ones for the real vocabulary, else generated ones."""
    if name != "embedded" and PILOT.is_dir():
        wikitext, sst2 = (PILOT / corpus.id for corpus in (protocol.corpora.pretrain, protocol.corpora.sft))
        paragraphs = read_columns([wikitext / "wikitext-2-raw-v1/test.parquet"], {"text": "string"})
        sentences = read_columns([sst2 / "validation.parquet"], {"sentence": "string"})
        return [text for (text,) in paragraphs], [text for (text,) in sentences]
    paragraphs_ = [row["text"] for row in generated.paragraphs(11)["test"]]
    return paragraphs_, [row["sentence"] for row in generated.sentences(11)["validation"]]


def load(name: str, device: str) -> Case:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    protocol, _ = architecture(name)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), name)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    paragraphs, sentences = texts(name, protocol)
    longer = protocol.select.pretrain.longer_than
    paragraphs = [text for text in paragraphs if len(text.strip()) > longer]
    prompts = [protocol.select.sft.prompt.replace("{sentence}", text) for text in sentences]
    score = protocol.score
    return Case(name, model, tokenizer, paragraphs, prompts, score.pretrain, score.sft)


def notes(names: Sequence[str]) -> list[str]:
    return [ABSENT] if not PILOT.is_dir() and set(names) - {"embedded"} else []


def flop(model: Any, read: int, said: int) -> float:
    """Of `read` tokens through the layers and `said` through the vocabulary: two for each weight that each meets.

    Attention's own, under 2 % at these lengths, is left out.
    """
    vocabulary = model.get_output_embeddings().weight.numel()
    layers = sum(weight.numel() for weight in model.base_model.parameters()) - vocabulary
    return 2.0 * (layers * read + vocabulary * said)
