"""Splitting by a stable hash: the same rows fall on the same side on every machine, in any order, for ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from workbench.data.messages import comparable
from workbench.errors import DataError
from workbench.task import prompt_key


def percentile(key: str) -> int:
    """`key` hashed to one of 0..99: on which side of a split it falls, wherever and whenever it is asked."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "backslashreplace")).digest()[:4], "big") % 100


def split_rows(
    rows: Iterable[dict[str, Any]], held_out_percent: int = 10, key: str | None = None, salt: str = ""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split rows into (train, held out).

    Args:
        rows: each with a `prompt`.
        held_out_percent: of the keys, on average.
        key: column by which rows stay together, where two prompts ask the same thing; None: the prompt without its system
            message, so that asking for another format does not split anew.
        salt: makes this split another one than other splits by the same keys.

    Raises:
        DataError: if a row has no such column, or the percentage is none.
    """
    if not 0 <= held_out_percent < 100 or 0 < held_out_percent < 1:
        raise DataError(
            f"held_out_percent = {held_out_percent}",
            rule="a percentage lies between 0 and 100",
            remedy="10 is a good one",
        )
    train, held_out = [], []
    for number, row in enumerate(rows):
        if key is not None and key not in row:
            raise DataError(
                f"row {number} has no column {key!r}",
                rule="rows stay together by a column",
                remedy="split by another column",
            )
        text = salt + (str(row[key]) if key else prompt_key(comparable(row["prompt"], system=False)))
        (held_out if percentile(text) < held_out_percent else train).append(row)
    return train, held_out


def shared_questions(held_out: Iterable[dict[str, Any]], train: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The held-out rows whose question stands in the training rows too, but for case, white space and closing marks."""

    def asked(row: dict[str, Any]) -> str:
        return comparable(row["prompt"], system=False).casefold().rstrip(" .?!:")

    known = {hash(asked(row)) for row in train}
    return [row for row in held_out if hash(asked(row)) in known]


def fingerprint(rows: Iterable[dict[str, Any]]) -> str:
    """A hash of the rows and their order, 16 hex digits: what the manifest records as the data."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
        )
        digest.update(b"\n")
    return digest.hexdigest()[:16]
