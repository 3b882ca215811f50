"""`workbench check`: one pass over a source, with its report, its prompt lengths and, on request,
the kept rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.base.workspace import find, made, shown
from workbench.data.checks import Checked, Report
from workbench.data.prompts import prompt_for_system
from workbench.data.rendering import PromptLengths, stream_lengths
from workbench.data.sources import open_source, save_rows
from workbench.recipe import template_kwargs
from workbench.task import Row


class Found(NamedTuple):
    """The findings of `workbench check`."""

    report: Report
    lengths: Fields | None = None
    out: Path | None = None

    def found(self) -> Fields:
        """For `--json`."""
        return self.report.found() | {"lengths": self.lengths, "out": self.out}

    def __str__(self) -> str:
        lines = [str(self.report)]
        if self.lengths:
            covering = ", ".join(
                f"{share} have at most {limit}" for share, limit in self.lengths["covering"].items()
            )
            lines.append(f"prompt lengths in tokens ({self.lengths['policy']}): {covering}")
        if self.out:
            lines.append(f"kept rows written to {shown(self.out)}")
        return "\n".join(lines)


def tokenizer_of(policy: str | None, chat_template_kwargs: Fields | str | None) -> Any:
    """A policy's tokenizer, its template rendered with these arguments, as in the recipe (JSON text
    will do), checked as where it is loaded; None: no policy.
    """
    if policy is None:
        return None
    from workbench.training.plan.loading import load_tokenizer
    from workbench.training.plan.measuring import check_tokenizer

    named = template_kwargs(chat_template_kwargs, "chat_template_kwargs")
    tokenizer = load_tokenizer(policy, named)
    check_tokenizer(tokenizer, policy)
    return tokenizer


def check_source(
    source: object,
    *,
    subset: str | None = None,
    split: str | None = None,
    other: object = None,
    out: Path | None = None,
    policy: str | None = None,
    chat_template_kwargs: Fields | str | None = None,
    system: str = "none",
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Found:
    """Read a source once, with at most a thousand of its rows in memory. `options` are those of
    `Checked`.

    Args:
        other: the other split, anything that can be opened.
        out: where the kept rows go, as JSON lines, atomically.
        policy: whose tokenizer measures prompt lengths; None: they are not measured.
        system: a name from `workbench.data.prompts`, or a text.
    """
    tokenizer = tokenizer_of(policy, chat_template_kwargs)
    opened = open_source(source, subset=subset, split=split)
    target = Path.cwd() / out if out is not None else None
    if target is not None:
        _make_room(target, source, other)
    checked = Checked(
        opened, system=prompt_for_system(system), other=other or (), progress=progress, **options
    )
    lengths: list[int] = []

    def measured() -> Iterator[Row]:
        for row, length in stream_lengths(checked, tokenizer):
            lengths.append(length)
            yield row

    rows = iter(checked) if tokenizer is None else measured()
    if target is None:
        deque(rows, maxlen=0)  # gone through for its report
    else:
        save_rows(rows, target)
    if tokenizer is None:
        return Found(checked.report, out=target)
    shares = PromptLengths([], lengths).covering
    covering = {f"{share:.0%}": limit for share, limit in shares.items()}
    found = {"policy": policy, "covering": covering, "longest_tokens": covering.get("100%")}
    return Found(checked.report, found, target)


def _make_room(target: Path, *inputs: object) -> None:
    read = [find(path) for path in inputs if isinstance(path, str | Path)]
    why = ""
    if target.is_dir():
        why = "a folder"
    elif any(path.exists() and path.resolve() == target.resolve() for path in read):
        why = "it is read from"
    elif not os.access(made(target.parent), os.W_OK):
        why = f"{target.parent} cannot be written to"
    if why:
        raise DataError(
            f"out = {target}: {why}",
            rule="kept rows go into a new file in a folder",
            remedy="choose another file",
        )
