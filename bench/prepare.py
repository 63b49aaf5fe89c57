"""Selecting 2,048 of N labelled rows against a script on `datasets`: seconds, and peak memory of each process."""

import shutil
from argparse import Namespace
from pathlib import Path

from bench.measure import Record, child, interleaved, scratch

SIZES = (67_349, 1_000_000, 10_000_000)
CHUNK = 250_000
SCRIPT = "datasets: map, filter, sort"
OURS = """
import hashlib, sys, time
from stages.corpora.rows import SFT_COLUMNS, read_columns
from stages.corpora.select import select_sft
from stages.protocol import read_protocol
rule = read_protocol("pilot").select.sft
import pyarrow.parquet
before, started = peak(), time.perf_counter()
chosen, _ = select_sft(rule, lambda: read_columns([Path(sys.argv[1])], SFT_COLUMNS), [("held out", 0)])
seconds = time.perf_counter() - started
digest = hashlib.sha256(json.dumps(sorted(text for text, _ in chosen)).encode()).hexdigest()
print(json.dumps({"seconds": seconds, "before": before, "rows": digest, "peak": peak()}))
"""
# As one would write it: keys by map, the held-out rows by filter, the order by sort, duplicates on the way out.
DATASETS = """
import hashlib, sys, time
from datasets import disable_progress_bars, load_dataset
disable_progress_bars()
def keys(batch):
    texts = batch["sentence"]
    return {"digest": [hashlib.sha256(text.encode()).hexdigest() for text in texts],
            "key": [" ".join(text.casefold().split()) for text in texts]}
before, started = peak(), time.perf_counter()
data = load_dataset("parquet", data_files=sys.argv[1], split="train", cache_dir=sys.argv[2])
data = data.map(keys, batched=True).filter(lambda batch: [key != "held out" for key in batch["key"]], batched=True)
data = data.sort("digest")
seen, chosen, left = set(), [], {0: 1024, 1: 1024}
for batch in data.iter(4096):
    for text, label, key in zip(batch["sentence"], batch["label"], batch["key"]):
        if key not in seen and left[label]:
            seen.add(key)
            left[label] -= 1
            chosen.append(text)
    if not any(left.values()):
        break
seconds = time.perf_counter() - started
digest = hashlib.sha256(json.dumps(sorted(chosen)).encode()).hexdigest()
print(json.dumps({"seconds": seconds, "before": before, "rows": digest, "peak": peak()}))
"""


def write_corpus(path: Path, rows: int) -> int:
    """Rows of which one in twenty is a duplicate; the bytes of their texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"sentence": pa.string(), "label": pa.int64()})
    distinct, size = rows - rows // 20, 0
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            numbers = [i % distinct for i in range(start, min(start + CHUNK, rows))]
            texts = [f"the plot of picture number {i} is not as vivid as it seems " for i in numbers]
            size += sum(map(len, texts))
            writer.write_table(pa.table({"sentence": texts, "label": [i % 2 for i in numbers]}, schema))
    return size


def measure_size(record: Record, rows: int, rounds: int) -> None:
    folder = scratch(f"prepare-{rows}")
    path = folder / "train.parquet"
    size = write_corpus(path, rows)

    def script() -> dict[str, object]:
        shutil.rmtree(folder / "cache", ignore_errors=True)  # a second run would read the first one's answer
        return child(DATASETS, str(path), str(folder / "cache"))

    seconds, found = interleaved({"this project": lambda: child(OURS, str(path)), SCRIPT: script}, rounds)
    shutil.rmtree(folder)
    ours, other = found["this project"], found[SCRIPT]
    if ours["rows"] != other["rows"]:
        raise SystemExit(f"bench: of {rows} rows, the two selected others")
    memory = " against ".join(f"{(one['peak'] - one['before']) / 1024:,.0f}" for one in (ours, other))
    equal = f"same rows; {memory} MiB above start"
    work = {"bytes": size, "hashed": size}  # each text read once, and digested for its place in the order
    record.line(f"{rows:,} rows", seconds, rows, "rows/s", {SCRIPT: 1.0}, equal=equal, work=work)


def measure(given: Namespace) -> Record:
    record = Record("Preparing")
    sizes = [max(50_000, round(rows * given.scale)) for rows in SIZES] if given.scale != 1 else list(SIZES)
    for rows in sorted(set(sizes)):
        measure_size(record, rows, 1 if rows > 2_000_000 else given.rounds)
    folder = scratch("prepare-growth")
    paths = {rows: folder / f"{rows}.parquet" for rows in (100_000, 400_000, 1_600_000)}
    for rows, path in paths.items():
        write_corpus(path, rows)
    grown = {rows: (lambda at=at: child(OURS, str(at))) for rows, at in paths.items()}
    record.grow("select", "rows", grown, given.rounds)
    shutil.rmtree(folder)
    return record
