"""Snapshots: put what the protocol names under `data/raw/<repo id>/`, from the hub, a mirror, or the generator.

A mirror is a folder laid out `<repo id>/...`; one that the hub's own download tool filled is a mirror as it is, and so
is `data/raw/` itself.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from stages.command import ParityError
from stages.corpora import generated
from stages.corpora.hub import check_pins, fetch_dataset
from stages.evidence.digests import sha256_file, sha256_json
from stages.protocol import Corpus, Model, Protocol


def split_files(root: Path, corpus: Corpus, split: str) -> list[Path]:
    """The parquet files of a split in the snapshot or mirror `root`, in name order.

    They lie anywhere below `<root>/<repo id>/`, or its configuration's folder where there is one, and their names
    start with the split's.
    """
    folder = root / corpus.id
    if corpus.configuration and (folder / corpus.configuration).is_dir():
        folder = folder / corpus.configuration
    found = [
        path
        for path in folder.rglob("*.parquet")
        if path.name.startswith(split)
        and not path.name[len(split)].isalnum()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not found:
        raise ParityError(f"{folder}: no parquet file of the split '{split}' of {corpus.id}")
    return sorted(found)


def snapshot_corpus(corpus: Corpus, mirror: Path | None, folder: Path) -> str:
    """Fill `folder` (the snapshot's root) with one corpus; say where it came from."""
    target = folder / corpus.id
    target.mkdir(parents=True, exist_ok=True)
    if corpus.source == "generated":
        generated.write_corpus(corpus, target)
        return "generated"
    if mirror is not None:
        for split in (corpus.train_split, corpus.test_split):
            for path in split_files(mirror, corpus, split):
                copy = folder / path.relative_to(mirror)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        return "mirror"
    prefix = f"{corpus.configuration}/" if corpus.configuration else ""
    patterns = [f"{prefix}*{split}*.parquet" for split in (corpus.train_split, corpus.test_split)]
    fetch_dataset(corpus.id, corpus.revision, target, patterns)
    return "hub"


def snapshot_model(model: Model, protocol: Protocol, folder: Path) -> None:
    """Make a generated base model; one from the hub is fetched by the worker, where it is needed."""
    target = folder / model.id
    target.mkdir(parents=True, exist_ok=True)
    corpora = [protocol.corpora.sft, protocol.corpora.pretrain]
    generated.write_tokenizer(corpora, protocol.select.sft.prompt, model.architecture.vocab_size, target)
    generated.write_weights(model.architecture, int(model.revision), target)
    check_pins(model.sha256, target)


def tokenizer_folder(model: Model, mirror: Path | None, root: Path) -> Path:
    """A folder with the base model's tokenizer; a mirror may hold it alone, as `<repo id>-tokenizer/`."""
    candidates = [base / name for base in filter(None, (root, mirror)) for name in (model.id, f"{model.id}-tokenizer")]
    for folder in candidates:
        if (folder / "tokenizer.json").is_file():
            return folder
    raise ParityError(f"no tokenizer.json of {model.id} in {' or '.join(map(str, candidates))}; set PARITY_MIRROR")


def describe_files(root: Path, files: Iterable[Path]) -> dict[str, object]:
    """Digest of a snapshot's files: one per file, and one over all of them."""
    digests = {str(path.relative_to(root)): sha256_file(path) for path in sorted(files)}
    return {"files": digests, "sha256": sha256_json(digests)}


def snapshot(protocol: Protocol, mirror: Path | None, folder: Path) -> dict[str, dict[str, object]]:
    """Fill `folder` with everything that the protocol names; say of each where it came from and its digests."""
    if mirror is not None and not mirror.is_dir():
        raise ParityError(f"mirror: {mirror}: no such folder")
    taken: dict[str, dict[str, object]] = {}
    for corpus in (protocol.corpora.sft, protocol.corpora.pretrain):
        origin = snapshot_corpus(corpus, mirror, folder)
        files = {f for split in (corpus.train_split, corpus.test_split) for f in split_files(folder, corpus, split)}
        taken[corpus.id] = {"source": origin, "revision": corpus.revision, **describe_files(folder, files)}
    if protocol.model.source == "generated":
        snapshot_model(protocol.model, protocol, folder)
        files = set((folder / protocol.model.id).iterdir())
        taken[protocol.model.id] = {
            "source": "generated",
            "revision": protocol.model.revision,
            **describe_files(folder, files),
        }
    return taken
