"""A refusal as the API words it: a `metav1.Status` whose HTTP code is its own."""

from typing import Any


class Refusal(Exception):  # noqa: N818
    def __init__(self, code: int, reason: str, message: str, fix: str | None = None, **details: Any):
        super().__init__(message)
        self.code = code
        self.body = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason}
        self.body |= {"message": message, "details": details} | ({"fix": fix} if fix else {})


def invalid(causes: list[dict[str, str]]) -> Refusal:
    return Refusal(422, "Invalid", "the object is invalid", causes=causes)
