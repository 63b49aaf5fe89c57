"""Selecting 2,048 of N labelled rows: rows per second and peak memory, which must not grow with N."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.table import Table

CHUNK = 250_000
CHILD = """
import json, re, sys, time
from pathlib import Path
from stages.corpora.rows import SFT_COLUMNS, read_columns
from stages.corpora.select import select_sft
from stages.protocol import read_protocol
rule = read_protocol("pilot").select.sft
import pyarrow.parquet
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # KiB, since exec
before = peak()
started = time.perf_counter()
chosen, _ = select_sft(rule, lambda: read_columns([Path(sys.argv[1])], SFT_COLUMNS), [("held out", 0)])
print(json.dumps({"seconds": time.perf_counter() - started, "before": before, "rows": len(chosen),
                  "peak": peak()}))
"""


def write_corpus(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"sentence": pa.string(), "label": pa.int64()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            numbers = range(start, min(start + CHUNK, rows))
            texts = [
                f"the plot of picture number {i % (rows - rows // 20)} is not as vivid as it seems " for i in numbers
            ]
            writer.write_table(pa.table({"sentence": texts, "label": [i % 2 for i in numbers]}, schema))


def measure(sizes: list[int]) -> Table:
    table = Table(
        "train rows", "seconds", "rows/s", "memory before, MiB", "peak, MiB", title="prepare: select 2,048 rows"
    )
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.parquet"
            write_corpus(path, rows)
            done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        memory = [f"{found[key] / 1024:,.0f}" for key in ("before", "peak")]
        table.add_row(f"{rows:,}", f"{found['seconds']:.2f}", f"{rows / found['seconds']:,.0f}", *memory)
    return table
