"""One diff of "then and now": a resumed run, runs side by side, an artefact trained further."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from workbench.base.kinds import Fields
from workbench.recipe import packaged

NOT_SET = "not set"


class Rule(NamedTuple):
    """What a difference means for a resumed run; the first rule whose pattern matches decides."""

    pattern: str  # of a dotted name; * stands for any letters
    kind: str  # a field of `Differences`
    words: str  # name: without its first part; leaf: its last part; {} then, {} now
    missing: str | None = None  # what to call an absent value; None: compare only what both have


RULES = [
    Rule(pattern, *meaning)
    for pattern, meaning in packaged(Path(__file__).with_suffix(".yaml")).items()
]


@dataclass(frozen=True)
class Differences:
    """What has changed: one line each, by what it means for a resumed run."""

    shown: list[str] = field(default_factory=list)  # decides nothing that was requested
    refused: list[str] = field(default_factory=list)  # makes another run of it, unless accepted
    held: list[str] = field(default_factory=list)  # cannot be changed at all

    def diff(self, then: Fields, now: Fields) -> None:
        """Add the differences between two manifests, or parts of them; those that no rule names do
        not count.
        """
        before, after = flat(then), flat(now)
        for name in sorted(before.keys() | after.keys()):
            rule = next((rule for rule in RULES if fnmatchcase(name, rule.pattern)), None)
            if rule is None or (rule.missing is None and name not in before.keys() & after.keys()):
                continue
            values = before.get(name, rule.missing), after.get(name, rule.missing)
            if values[0] != values[1]:
                short, leaf = name.partition(".")[2] or name, name.rpartition(".")[2]
                line = rule.words.format(*values, name=short, leaf=leaf)
                getattr(self, rule.kind).append(line)


def flat(content: object, name: str = "") -> Fields:
    """Dotted name -> value, as {"grpo.beta": 0.0, "stages.0.steps": 5}; a list of plain values is a
    value.
    """
    if isinstance(content, list) and any(isinstance(item, dict) for item in content):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        return {name: content}
    values: Fields = {}
    for key, value in content.items():
        values |= flat(value, f"{name}.{key}" if name else str(key))
    return values
