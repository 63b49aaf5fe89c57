"""Selection: which rows of a corpus a task trains on and is scored by.

Streams: a train split of any length is passed through once, and only rows that can still be selected are kept.
Source of the rules: the published execution record, `data_preparation`.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable

from stages.command import ParityError
from stages.protocol import PretrainSelection, SftSelection


def fold(text: str) -> str:
    """Case-folded, split on whitespace, joined with one space: equal folds are duplicates."""
    return " ".join(text.casefold().split())


Labelled = tuple[str, int]
Ranked = tuple[bytes, int, str, int]  # digest of the sentence, position, sentence, label: in the order of selection


class ClassQuotas:
    """The first `quota` rows per class in the order of their sentences' SHA-256, exact duplicates (by fold) removed.

    A row above `limit` in that order can neither be selected nor displace one that is, so it is forgotten at once.
    `limit` only ever falls, to the place where every class holds `slack` times its quota. A later duplicate can take
    a class below its quota again; `selected` then answers None and a wider slack is needed.
    """

    def __init__(self, classes: int, quota: int, excluded: set[str], slack: int):
        self.classes, self.quota, self.excluded = classes, quota, excluded
        self.keep = quota * slack
        self.limit: bytes | None = None
        self.first: dict[str, Ranked] = {}
        self.full = 4 * self.keep * classes

    def add(self, position: int, sentence: str, label: int) -> None:
        digest = hashlib.sha256(sentence.encode()).digest()
        if self.limit is not None and digest > self.limit:
            return
        key = fold(sentence)
        if key in self.excluded:
            return
        row = (digest, position, sentence, label)
        known = self.first.get(key)
        if known is None or row < known:
            self.first[key] = row
        if len(self.first) > self.full:
            self.forget()

    def forget(self) -> None:
        ranks = [heapq.nsmallest(self.keep, rows) for rows in self.by_class()]
        if min(map(len, ranks)) == self.keep:
            self.limit = max(rows[-1][0] for rows in ranks)
            self.first = {key: row for key, row in self.first.items() if row[0] <= self.limit}
        self.full = max(self.full, 2 * len(self.first))

    def by_class(self) -> list[list[Ranked]]:
        rows: list[list[Ranked]] = [[] for _ in range(self.classes)]
        for row in self.first.values():
            rows[row[3]].append(row)
        return rows

    def selected(self) -> list[list[Ranked]] | None:
        chosen = [heapq.nsmallest(self.quota, rows) for rows in self.by_class()]
        complete = min(map(len, chosen)) == self.quota
        return chosen if complete or self.limit is None else None


def select_sft(
    rule: SftSelection, train: Callable[[], Iterable[Labelled]], test: Iterable[Labelled]
) -> tuple[list[Labelled], list[Labelled]]:
    """Train and test rows (sentence, label) of a labelled corpus; `train` is called anew for each pass."""
    classes = len(rule.classes)
    held_out = [check_label(row, classes, f"test row {i}") for i, row in enumerate(test)]
    excluded = {fold(sentence) for sentence, _ in held_out}
    slack, chosen = 2, None
    while chosen is None:
        quotas = ClassQuotas(classes, rule.rows_per_class, excluded, slack)
        for position, row in enumerate(train()):
            quotas.add(position, *check_label(row, classes, f"train row {position}"))
        chosen, slack = quotas.selected(), slack * 4
    for label, rows in enumerate(chosen):
        if len(rows) < rule.rows_per_class:
            raise ParityError(
                f"train split: {len(rows)} distinct rows of class '{rule.classes[label]}' outside the test split, "
                f"the protocol asks for {rule.rows_per_class}"
            )
    return [(sentence, label) for rows in chosen for _, _, sentence, label in rows], held_out


def check_label(row: Labelled, classes: int, where: str) -> Labelled:
    if not 0 <= row[1] < classes:
        raise ParityError(f"{where}: label {row[1]}, expected 0 to {classes - 1}")
    return row


def select_pretrain(rule: PretrainSelection, train: Iterable[str], test: Iterable[str]) -> tuple[list[str], list[str]]:
    """Train and test paragraphs of a corpus: long enough, train ones distinct and none of them in the test split."""
    held_out = [text for text in test if len(text.strip()) > rule.longer_than]
    seen = {fold(text) for text in held_out}
    chosen: list[str] = []
    for text in train:
        if len(text.strip()) > rule.longer_than and (key := fold(text)) not in seen:
            seen.add(key)
            chosen.append(text)
            if len(chosen) == rule.rows:
                return chosen, held_out
    raise ParityError(
        f"train split: {len(chosen)} distinct paragraphs longer than {rule.longer_than} characters outside the test "
        f"split, the protocol asks for {rule.rows}"
    )
