"""Splitting by a stable hash: the same rows fall on the same side on every machine, in any order, for ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def prompt_key(prompt: Any) -> str:
    """A stable hash of a prompt, chat messages or text: 64 hex digits."""
    canonical = json.dumps(prompt, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "backslashreplace")).hexdigest()


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
        key: column by which rows stay together, where two prompts ask the same thing; None: the prompt itself.
        salt: makes this split another one than other splits by the same keys.
    """
    train, held_out = [], []
    for row in rows:
        text = salt + (str(row[key]) if key else prompt_key(row["prompt"]))
        (held_out if percentile(text) < held_out_percent else train).append(row)
    return train, held_out


def fingerprint(rows: Iterable[dict[str, Any]]) -> str:
    """A hash of the rows and their order, 16 hex digits: what the manifest records as the data."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
        )
        digest.update(b"\n")
    return digest.hexdigest()[:16]
