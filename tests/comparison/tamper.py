"""Alter files by one byte, one digit or one value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.comparison.build import indented


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_bytes(indented(document))


def digit(*keys: str) -> Callable[[Any], None]:
    """Change the last digit of a number or text in a document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        text = str(document[keys[-1]])
        altered = text[:-1] + ("1" if text[-1] != "1" else "2")
        document[keys[-1]] = altered if isinstance(document[keys[-1]], str) else type(document[keys[-1]])(altered)

    return change
