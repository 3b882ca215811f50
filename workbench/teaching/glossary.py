"""Words explained, for the versions that are installed: metrics, settings, and the house's own. The text is glossary.yaml."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from workbench.errors import TermError
from workbench.training.plan.names import ALIASES
from workbench.training.plan.values import CHOICES, DEFAULTS, RANGES

KINDS = {"metric": "metrics", "setting": "settings of GRPOConfig", "recipe": "other fields of a recipe", "word": "words"}


class Term(dict[str, Any]):
    """What a word means in one version of TRL: the fields that stand at the head of glossary.yaml; printed, it is the text."""

    def __str__(self) -> str:
        good = f"{self.get('good')} is good" * ("good" in self)
        lines = [f"{self['name']} ({', '.join(filter(None, [self['kind'], self.get('unit'), good]))})", self["meaning"]]
        if "default" in self:
            lines.append(f"default: {self['default']}" + f" in TRL {self['trl']}" * (self["kind"] == "setting"))
            lines[-1] += f"; in the workbench {self.get('here')}" * (self.get("here") not in (None, self["default"]))
        lines += [f"TRL {version}: {what}" for version, what in self["changed"].items()]
        told = {key: self.get(key) for key in ("takes", "healthy", "source")} | {"also": ", ".join(self.get("also", ()))}
        return "\n  ".join([*lines, *(f"{key}: {text}" for key, text in told.items() if text)])

    __repr__ = __str__


class Glossary(list[Term]):
    """All terms; printed, their names by kind."""

    def __str__(self) -> str:
        names = {kind: ", ".join(each["name"] for each in self if each["kind"] == kind) for kind in KINDS}
        return "\n".join(f"{title}: {names[kind]}" for kind, title in KINDS.items())

    __repr__ = __str__


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(Path(__file__).with_name("glossary.yaml").read_text(encoding="utf-8"))


def explain(name: str | None = None, trl: str | None = None) -> Term | Glossary:
    """What a metric, a setting or a word of the workbench means; None: all of them, which print as a list of names.

    >>> wb.explain("reward_std")["unit"]
    'reward'
    >>> print(wb.explain("clip_ratio"))
    clip_ratio (metric, share)
    ...

    Args:
        name: as TRL logs it, as the recipe has it, or a word such as "dead group"; old names are known, too.
        trl: the version of TRL to explain it for, as of an older guide; None: the one that is installed.

    Raises:
        TermError: if there is no such term, naming the nearest; or no such version.
    """
    try:
        version = Version(trl or metadata.version("trl"))
    except InvalidVersion:
        raise TermError(f"trl = {trl!r}", rule="a version is like 0.26 or 1.14.2", remedy="give one, or none") from None
    if name is None:
        return Glossary(_term(own, own, version) for own in _entries())
    known = {_plain(word): own for own, entry in _entries().items() for word in (own, *entry.get("also", ()))}
    asked = _plain(ALIASES.get(name, name))
    if own := known.get(asked) or next((own for own in _entries() if fnmatch.fnmatchcase(name, own)), None):
        return _term(name if "*" in own else own, own, version)
    near = list(dict.fromkeys(known[word] for word in difflib.get_close_matches(asked, known, n=3)))
    remedy = f"did you mean {' or '.join(map(repr, near))}?" if near else "`workbench explain` lists them"
    raise TermError(f"no term {name!r}", rule=f"the glossary has {len(_entries())} terms", remedy=remedy)


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", " ", word.strip().casefold())


def _term(name: str, own: str, trl: Version) -> Term:
    entry = Term({"name": name, "trl": str(trl)} | _entries()[own])
    changed = dict(entry.get("changed", {}))
    for key in ("meaning", "default"):
        if isinstance(by_version := entry.get(key), dict):
            before, *since = by_version
            entry[key] = by_version[max((each for each in by_version if Version(each) <= trl), key=Version, default=before)]
            if key == "default":
                pairs = zip(by_version, since)
                changed = {new: f"default {by_version[new]}, before {by_version[old]}" for old, new in pairs} | changed
    if entry["kind"] == "setting":
        entry["here"] = DEFAULTS.get(own)
        entry["takes"] = ", ".join(map(str, CHOICES.get(own, ()))) or RANGES.get(own, (None, ""))[1]
    entry["changed"] = dict(sorted(changed.items(), key=lambda one: Version(one[0])))
    return entry
