"""The embedded corpora and base model: generated from integers alone, the same bytes on every machine.

Two corpora in the shape of the hub's own (SST-2's `idx, sentence, label`; WikiText's `text`), a tokenizer trained on
them, and an untrained Qwen2. Sentiment here is a rule over a clause, not a word: a word's polarity can depend on what
it describes, a negator flips it, and of two contrasted clauses only one counts. So a bag of words stays near chance
and a model has to learn order. Duplicates and train/test overlaps are planted for the selection to find.
"""

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stages.command import ParityError
from stages.evidence.digests import filling
from stages.protocol import Architecture, Corpus

T = TypeVar("T")

END_OF_TEXT = "<|endoftext|>"
# How every Qwen2 tokenizer splits words; `transformers` applies it whatever tokenizer.json says.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

POSITIVE = ["delightful", "moving", "clever", "graceful", "honest", "vivid", "charming", "superb", "warm", "splendid"]
NEGATIVE = ["tedious", "clumsy", "dreary", "shallow", "hollow", "bleak", "awkward", "dismal", "stale", "tiresome"]
# These say nothing alone: the noun decides which way they point.
DEPENDENT = ["long", "short", "quiet", "loud", "simple", "strange"]
NOUNS = ["plot", "score", "cast", "ending", "script", "scene", "dialogue", "story", "picture", "humor"]
NEGATORS = ["not", "never", "hardly", "by no means"]
FILLERS = [
    "for most of its two hours",
    "in the second act",
    "as the camera follows her home",
    "according to the program notes",
    "on a small screen",
    "with the usual crowd of extras",
    "between the opening and the credits",
    "in this version",
]
NEGATED = 0.25
VERBS = ["is", "feels", "seems", "looks", "remains"]


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of `options`; only `random()`, whose sequence Python promises to keep, is drawn on."""
    return options[int(rng.random() * len(options))]


def dependent_polarity(word: str, noun: str) -> int:
    return (DEPENDENT.index(word) + NOUNS.index(noun)) % 2


def clause(rng: random.Random) -> tuple[str, int]:
    """A clause and the polarity it states (1 positive, 0 negative)."""
    noun, kind = pick(rng, NOUNS), rng.random()
    if kind < 0.08:
        word = pick(rng, DEPENDENT)
        polarity = dependent_polarity(word, noun)
    else:
        polarity = int(rng.random() < 0.5)
        word = pick(rng, (NEGATIVE, POSITIVE)[polarity])
    negator = ""
    if rng.random() < NEGATED:
        negator, polarity = pick(rng, NEGATORS) + " ", 1 - polarity
    return f"the {noun} {pick(rng, VERBS)} {negator}{word}", polarity


def sentence(rng: random.Random) -> tuple[str, int]:
    """A sentence as SST-2 has them (lower case, a trailing space) and its label."""
    text, label = clause(rng)
    shape = rng.random()
    if shape < 0.2:
        other, _ = clause(rng)
        text = f"{other} , but {text}" if shape < 0.1 else f"{text} , although {other}"
    if rng.random() < 0.4:
        filler = pick(rng, FILLERS)
        text = f"{filler} , {text}" if rng.random() < 0.5 else f"{text} {filler}"
    return text + " ", label


def sentences(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Splits `train` (6,000 rows) and `validation` (400), columns `idx`, `sentence`, `label`.

    Planted: one train row in 20 repeats an earlier one with other case or spacing, one in 25 repeats a validation row.
    """
    rng = random.Random(seed)
    validation = [sentence(rng) for _ in range(400)]
    train: list[tuple[str, int]] = []
    while len(train) < 6000:
        draw = rng.random()
        if draw < 0.05 and train:
            text, label = pick(rng, train)
            train.append((disguise(rng, text), label))
        elif draw < 0.09:
            text, label = pick(rng, validation)
            train.append((disguise(rng, text), label))
        else:
            train.append(sentence(rng))
    return {
        name: [{"idx": i, "sentence": text, "label": label} for i, (text, label) in enumerate(rows)]
        for name, rows in (("train", train), ("validation", validation))
    }


def disguise(rng: random.Random, text: str) -> str:
    """The same text to a reader that folds case and space, other bytes to one that does not."""
    return text.capitalize() if rng.random() < 0.5 else text.replace(" ", "  ", 1)


SYLLABLES = ["ba", "ren", "tol", "mi", "ka", "ster", "lo", "ven", "da", "ri", "mun", "sa"]
TOPICS = [
    ("river", ["flows", "floods", "bends", "freezes"], ["valley", "bridge", "delta", "mill", "harbor"]),
    ("regiment", ["marched", "retreated", "camped", "drilled"], ["fort", "ridge", "border", "garrison", "depot"]),
    ("comet", ["appeared", "faded", "returned", "brightened"], ["horizon", "observatory", "orbit", "sky", "catalog"]),
    ("orchestra", ["performed", "rehearsed", "toured", "recorded"], ["hall", "festival", "symphony", "score", "court"]),
    ("beetle", ["feeds", "burrows", "molts", "swarms"], ["forest", "bark", "larva", "meadow", "leaf"]),
]
OPENINGS = ["In", "Before", "After", "Around", "Until"]


def name(rng: random.Random) -> str:
    return "".join(pick(rng, SYLLABLES) for _ in range(2 + int(rng.random() * 2))).capitalize()


def paragraph(rng: random.Random) -> str:
    """A paragraph as WikiText has them: about one subject, a leading space, and ` \\n` at the end."""
    subject, verbs, places = pick(rng, TOPICS)
    title, year, lines = name(rng), 1700 + int(rng.random() * 300), []
    for _ in range(2 + int(rng.random() * 9)):
        year += int(rng.random() * 5)
        lines.append(
            f"{pick(rng, OPENINGS)} {year} , the {title} {subject} {pick(rng, verbs)} near the {pick(rng, places)} "
            f"of {name(rng)} , and the {pick(rng, places)} was named after it ."
        )
    return " " + " ".join(lines) + " \n"


def paragraphs(seed: int) -> dict[str, list[dict[str, str]]]:
    """Splits `train` and `test`, column `text`: headings, blank rows, short lines and paragraphs, as in WikiText.

    Planted in `train`: repeats of earlier paragraphs and of test paragraphs, case changed.
    """
    rng = random.Random(seed)
    test = [paragraph(rng) for _ in range(96)]
    train: list[str] = []
    for _ in range(480):
        draw = rng.random()
        if draw < 0.05 and train:
            train.append(pick(rng, train).upper())
        elif draw < 0.10:
            train.append(pick(rng, test).upper())
        else:
            train.append(paragraph(rng))
    return {
        split: [{"text": text} for body in rows for text in ("", f" = {name(rng)} = \n", body)]
        for split, rows in (("train", train), ("test", test))
    }


CORPORA = {"generated/sentiment": sentences, "generated/paragraphs": paragraphs}


def splits(corpus: Corpus) -> dict[str, list[dict[str, Any]]]:
    """The rows of a generated corpus, split by split."""
    if corpus.id not in CORPORA:
        raise ParityError(f"corpora: found the generated '{corpus.id}', expected one of {', '.join(CORPORA)}")
    return CORPORA[corpus.id](int(corpus.revision))


def write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write every split of a generated corpus as `<folder>/<split>.parquet`; the revision is the seed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split, rows in splits(corpus).items():
        with filling(folder / f"{split}.parquet") as stream:
            pq.write_table(pa.Table.from_pylist(rows), stream)


def texts(corpora: Sequence[Corpus]) -> Iterator[str]:
    for corpus in corpora:
        for row in splits(corpus)["train"]:
            yield row.get("sentence") or row.get("text") or ""


def write_tokenizer(corpora: Sequence[Corpus], prompt: str, vocab_size: int, folder: Path) -> None:
    """Train a byte-level BPE on the corpora's train splits and write it as `transformers` reads it."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The prompt is part of what is tokenized later; weighed in so that its words become whole tokens.
    examples = [prompt.replace("{sentence}", "") + " positive negative"] * 200
    tokenizer.train_from_iterator([*texts(corpora), *examples], trainer)
    if (found := tokenizer.get_vocab_size()) > vocab_size:
        raise ParityError(f"model.architecture.vocab_size: found {vocab_size}, a tokenizer has at least {found}")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def parameter_shapes(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Qwen2 with tied embeddings, in `transformers`' own naming."""
    hidden, inner = arch.hidden_size, arch.intermediate_size
    keys = hidden // arch.num_attention_heads * arch.num_key_value_heads
    yield "model.embed_tokens.weight", (arch.vocab_size, hidden)
    for layer in range(arch.num_hidden_layers):
        at = f"model.layers.{layer}"
        for projection, width in (("q", hidden), ("k", keys), ("v", keys)):
            yield f"{at}.self_attn.{projection}_proj.weight", (width, hidden)
            yield f"{at}.self_attn.{projection}_proj.bias", (width,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def write_weights(arch: Architecture, seed: int, folder: Path) -> None:
    """Write an untrained Qwen2: matrices uniform with standard deviation 0.06, norms 1, biases 0.

    Uniform and not normal, because a uniform draw needs no logarithm and is the same float on every machine.
    """
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.Generator(np.random.PCG64(seed))
    bound = 0.06 * math.sqrt(3)
    tensors = {}
    for key, shape in parameter_shapes(arch):
        if len(shape) == 2:
            tensors[key] = ((rng.random(shape) * 2 - 1) * bound).astype(np.float32)
        else:
            tensors[key] = (np.ones if "norm" in key else np.zeros)(shape, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "eos_token_id": 0,
        "pad_token_id": 0,
        "hidden_act": "silu",
        "initializer_range": 0.06,
        **arch.model_dump(),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {"do_sample": False, "eos_token_id": 0, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n")
