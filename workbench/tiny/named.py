"""The policies that have a name and need no hub: where each is, and what others know it as.

Others are put on by instruments: the socket `policies` of `workbench/base/instruments.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from workbench.base.instruments import places_in, plugged
from workbench.tiny import MODEL_DIR, TURNS_DIR


class Named(NamedTuple):
    """A policy that a recipe calls by its name."""

    folder: Callable[[], Path]  # makes it where that is needed; PolicyError: it cannot
    tail: tuple[str, ...]  # how its folder's path ends, in any installation
    public: str  # the base that others know
    origin: str = ""  # a clause on its weights, where they differ from those


_EMBEDDED = {
    "tiny": Named(lambda: MODEL_DIR, MODEL_DIR.parts[-3:], "tiny"),
    "tiny_turns": Named(lambda: TURNS_DIR, TURNS_DIR.parts[-3:], "tiny_turns"),
}
ORIGIN = "origin.txt"  # in the folder of a policy that was made here: that clause
*_FIRST, _LAST = (f'"{name}"' for name in (*_EMBEDDED, *places_in("policies")))
NAMES = f"{', '.join(_FIRST)} or {_LAST}"
CHOICES = f'{NAMES}, a hub name like "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", or a local folder'


def named_policies() -> dict[str, Named]:
    """All of them, by name."""
    return _EMBEDDED | plugged("policies")


def folder_of(name: object) -> Path | None:
    """The folder of a policy that has this name, made where that is needed; None: none has.

    PolicyError: it cannot be made, or its extra is not installed.
    """
    own = named_policies().get(str(name))
    return own.folder() if own else None


def origin_of(folder: str | Path) -> list[str]:
    """A note where the weights in a folder are not those of their public name."""
    own, made = named_at(folder), Path(folder) / ORIGIN
    if own is None and made.is_file():
        return [made.read_text(encoding="utf-8")]
    return [own.origin] if own and own.origin else []


def named_at(folder: str | Path) -> Named | None:
    """The policy whose folder this is, also that of another installation; None: it is another's."""
    parts = Path(folder).parts
    return next(
        (one for one in named_policies().values() if parts[-len(one.tail) :] == one.tail), None
    )
