"""Words explained, for the installed versions: metrics, settings, and the workbench's own. The text
is glossary.yaml.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import itertools
import re
from pathlib import Path

from packaging.version import InvalidVersion, Version

from workbench.base.errors import TermError
from workbench.base.extras import trl_version
from workbench.base.kinds import Fields
from workbench.base.yaml_text import packaged
from workbench.training.plan.settings.names import ALIASES
from workbench.training.plan.settings.values import CHOICES, DEFAULTS, RANGES

_TOLD = (
    "doubt",
    "unit",
    "good",
    "healthy",
    "default",
    "in the workbench",
    "takes",
    "also",
    "source",
)


class Term(Fields):
    """What a word means in one version of TRL, by the fields at the head of glossary.yaml; printed,
    it is the text.
    """

    def __str__(self) -> str:
        kind = self["kind"]
        if kind in ("metric", "setting"):
            kind += f", TRL {self['trl']}"
        lines = [f"{self['name']} ({kind})", self["meaning"]]
        lines += [f"changed in {version}: {what}" for version, what in self["changed"].items()]
        return "\n  ".join([*lines, *(f"{key}: {self[key]}" for key in _TOLD if key in self)])

    __repr__ = __str__


@functools.cache
def _entries() -> dict[str, Fields]:
    return packaged(Path(__file__).with_name("glossary.yaml"))


def terms() -> dict[str, list[str]]:
    """The names of all terms, by kind."""
    names: dict[str, list[str]] = {}
    for name, entry in _entries().items():
        names.setdefault(entry["kind"], []).append(name)
    return names


def explain(name: str, trl: str | None = None) -> Term:
    """What a metric, a setting or a word of the workbench means; `workbench explain` lists them.

    >>> wb.explain("reward_std")["unit"]
    'reward'
    >>> print(wb.explain("clip_ratio"))
    clip_ratio (metric, TRL ...)
    ...

    Args:
        name: as TRL logs it, as the recipe has it, or a word such as "dead group"; old names are
            also known.
        trl: the version of TRL to explain it for, such as an older guide's; None: the installed
            one, or the one that the extra train brings.

    Raises:
        TermError: if there is no such term, naming the nearest; or no such version.
    """
    try:
        version, newest = Version(trl or trl_version()), Version(trl_version())
    except InvalidVersion:
        raise TermError(
            f"trl = {trl!r}", rule="a version is like 0.26 or 1.14.2", remedy="give one, or none"
        ) from None
    entries = _entries()
    known = {
        _plain(word): own
        for own, entry in entries.items()
        for word in (entry.get("field", own), own, *entry.get("also", ()))
    }
    word = _plain(ALIASES.get(name, name))
    # a name with a star stands for what a run logs of each function
    patterns = (own for own in entries if fnmatch.fnmatchcase(name, own))
    if own := known.get(word) or next(patterns, None):
        term = _term(name if "*" in own else own, own, version)
        if version > newest and term["kind"] in ("metric", "setting"):
            term["doubt"] = f"TRL {version} is newer than any known here; this holds for {newest}"
        return term
    near = dict.fromkeys(known[each] for each in difflib.get_close_matches(word, known, n=3))
    remedy = f"did you mean {' or '.join(map(repr, near))}?"
    raise TermError(
        f"no term {name!r}",
        rule=f"the glossary has {len(entries)} terms",
        remedy=remedy if near else "`workbench explain` lists them",
    )


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", " ", word.strip().casefold())


def _term(name: str, own: str, trl: Version) -> Term:
    entry = Term({"name": name, "trl": str(trl), "changed": {}} | _entries()[own])
    if "also" in entry:
        entry["also"] = ", ".join(entry["also"])
    if (of := entry.get("default")) and isinstance(of, dict):
        became = {
            f"{new} (default)": f"{of[old]} became {of[new]}" for old, new in itertools.pairwise(of)
        }
        entry["changed"] = became | entry["changed"]
    for key in ("meaning", "default"):
        if (by_version := entry.get(key)) and isinstance(by_version, dict):
            # a version older than the first has what it began with
            first, *later = by_version
            since = [first, *(version for version in later if Version(version) <= trl)]
            entry[key] = by_version[since[-1]]
    if entry["kind"] == "setting":
        if takes := ", ".join(map(str, CHOICES.get(own, ()))) or RANGES.get(own, {}).get(
            "words", ""
        ):
            entry["takes"] = takes
        if own in DEFAULTS:
            entry["in the workbench"] = DEFAULTS[own]
    return entry
