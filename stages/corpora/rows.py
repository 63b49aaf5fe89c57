"""From a snapshot's parquet files to a task's serialized rows, streaming.

Source of the serialization: the published execution record, `data_preparation.input_serialization`.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stages.command import ParityError, Task
from stages.corpora.select import select_pretrain, select_sft
from stages.corpora.sources import split_files
from stages.protocol import Corpus, Protocol, SftSelection
from stages.validation import first_line

BATCH_ROWS = 16384
SFT_COLUMNS = {"sentence": "string", "label": "int64"}


def read_columns(files: Iterable[Path], columns: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    """Tuples of the `columns` (name -> expected Arrow type) of parquet files, in order, a batch in memory at a time.

    Raises ParityError naming the file for one that is no parquet, lacks a column, or holds a null.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        try:
            with pq.ParquetFile(path) as table:
                check_schema(path, table.schema_arrow, columns)
                start = 0
                for batch in batches(table, list(columns)):
                    lists = [batch.column(name) for name in columns]
                    for name, values in zip(columns, lists, strict=True):
                        if values.null_count:
                            row = start + values.is_null().to_pylist().index(True)
                            raise ParityError(f"{path}: row {row}: {name} is null")
                    yield from zip(*(values.to_pylist() for values in lists), strict=True)
                    start += len(batch)
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of the disk; for what stands in a file pyarrow raises OSError without a number
            raise ParityError(f"{path}: cannot be read as parquet: {printable(first_line(error))}") from None


def batches(table: Any, columns: list[str]) -> Iterator[Any]:
    """A parquet file's batches, one row group at a time: asked for all groups, pyarrow keeps those already read."""
    for group in range(table.num_row_groups):
        yield from table.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns)


def check_schema(path: Path, schema: Any, columns: dict[str, str]) -> None:
    for name, kind in columns.items():
        if name not in schema.names:
            raise ParityError(f"{path}: no column '{name}'; it has {printable(', '.join(schema.names))}")
        if str(schema.field(name).type) not in (kind, f"large_{kind}"):
            raise ParityError(f"{path}: column '{name}' is {printable(schema.field(name).type)}, expected {kind}")


def printable(text: object) -> str:
    """What a file says of itself, in one line that a terminal takes."""
    return str(text).encode("unicode_escape").decode()[:200]


def serialize(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n").encode()


def sft_row(rule: SftSelection, sentence: str, label: int) -> dict[str, str]:
    return {"prompt": rule.prompt.replace("{sentence}", sentence), "completion": f" {rule.classes[label]}"}


def prepared_rows(protocol: Protocol, task: Task, raw: Path) -> tuple[list[bytes], list[bytes]]:
    """Serialized train and test rows of a task, from the snapshot `raw`."""
    corpus: Corpus = getattr(protocol.corpora, task)
    train, test = (split_files(raw, corpus, split) for split in (corpus.train_split, corpus.test_split))
    if task == "sft":
        rule = protocol.select.sft
        labelled = select_sft(rule, lambda: read_columns(train, SFT_COLUMNS), read_columns(test, SFT_COLUMNS))
        rows = [[serialize(sft_row(rule, *row)) for row in split] for split in labelled]
    else:
        texts = ((text for (text,) in read_columns(files, {"text": "string"})) for files in (train, test))
        chosen = select_pretrain(protocol.select.pretrain, *texts)
        rows = [[serialize({"text": text}) for text in split] for split in chosen]
    if not rows[1]:
        raise ParityError(f"{test[0].parent}: the split '{corpus.test_split}' of {corpus.id} holds no row to score")
    return rows[0], rows[1]
