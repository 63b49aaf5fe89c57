"""Overlapping windows over a paragraph, so that every token but its first is scored exactly once."""

from typing import NamedTuple

from stages.protocol import WindowScorer


class Window(NamedTuple):
    paragraph: int
    start: int
    end: int
    first: int  # the first token scored here; those before it are context


def windows(paragraph: int, length: int, scorer: WindowScorer) -> list[Window]:
    """The windows that score tokens 1 to `length - 1` of a paragraph once each."""
    found, scored = [], 1
    for start in range(0, length, scorer.scoring_stride):
        end = min(start + scorer.max_window_tokens, length)
        if scored < end:
            found.append(Window(paragraph, start, end, scored))
        scored = end
        if end == length:
            break
    return found
