"""Stage `prepare@task`: select and serialize a task's rows, and hold them against the protocol's pins.

python -m stages.prepare sft|pretrain
"""

import hashlib
from pathlib import Path

from stages import command
from stages.command import ParityError, Task
from stages.corpora.hub import check_snapshot
from stages.corpora.rows import prepared_rows
from stages.evidence.digests import filling, replacing
from stages.layout import INPUTS, RAW, input_names
from stages.protocol import Input, Protocol, protocol_path, read


def check_pin(name: str, rows: list[bytes], pin: Input, key: str, file: Path) -> None:
    found = hashlib.sha256(b"".join(rows)).hexdigest()
    if len(rows) != pin.rows:
        raise ParityError(f"{name}: {len(rows)} rows, {file} pins {pin.rows} at {key}.rows")
    if found != pin.sha256:
        raise ParityError(f"{name}: sha256 {found}, {file} pins {pin.sha256} at {key}.sha256")


def prepare(protocol: Protocol, task: Task, raw: Path, inputs: Path) -> None:
    """Write `<task>-train.jsonl` and `<task>-test.jsonl` to `inputs`, or nothing where either misses its pin."""
    pins = getattr(protocol.inputs, task)
    splits = prepared_rows(protocol, task, raw)
    for split, name, rows in zip(("train", "test"), input_names(task), splits, strict=True):
        key = f"inputs.{task}.{split}"
        check_pin(str(inputs / name), rows, getattr(pins, split), key, protocol_path(protocol.name))
    with replacing(*(inputs / name for name in input_names(task))) as partials:
        for partial, rows in zip(partials, splits, strict=True):
            with filling(partial) as stream:
                stream.writelines(rows)


def main() -> None:
    arguments = command.parser("stages.prepare", __doc__)
    command.add_task(arguments)
    task = arguments.parse_args().task
    _, protocol = read()
    check_snapshot(getattr(protocol.corpora, task).id)
    prepare(protocol, task, RAW, INPUTS)
    for name, pin in zip(input_names(task), getattr(protocol.inputs, task), strict=True):
        print(f"{INPUTS / name}: {pin[1].rows} rows, sha256 {pin[1].sha256}")


if __name__ == "__main__":
    command.run(main)
