"""One diff of "then and now": a resumed run, runs side by side, an artefact trained further."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from workbench.kinds import Fields

SHOWN, REFUSED, HELD = "shown", "refused", "held"
NOT_SET = "not set"
_PLAIN = "{name}: {} -> {}"
_QUOTED = "{name}: {!r} -> {!r}"


class Rule(NamedTuple):
    """What a difference means for a resumed run; the first rule whose pattern matches decides."""

    pattern: str  # of a dotted name; * stands for any letters
    kind: str
    words: str = _PLAIN  # name: without its first part; leaf: its last part; {} then, {} now
    missing: str | None = None  # what to call an absent value; None: compare only what both have


# Asked for again whenever a run resumes: how far, how often it saves and logs, and what guards it.
_FREE = (
    "run_name", "grpo.max_steps", "grpo.num_train_epochs", "grpo.save_steps",
    "grpo.save_total_limit",
    "grpo.logging_steps", "grpo.report_to", "rewards.", "eval_", "policy.gpu_memory_utilization",
    "generation",
    "algorithm", "stages.*.steps",
)  # fmt: skip
# The checkpoint's optimiser and schedule hold them.
_HELD = (
    "grpo.learning_rate", "grpo.lr_scheduler", "grpo.warmup", "grpo.weight_decay", "grpo.optim",
    "grpo.adam",
)  # fmt: skip
RULES = (
    *(Rule(f"recipe.{name}*", SHOWN, _QUOTED, NOT_SET) for name in _FREE),
    *(Rule(f"recipe.{name}*", HELD, _QUOTED, NOT_SET) for name in _HELD),
    Rule("recipe.*", REFUSED, _QUOTED, NOT_SET),
    Rule("*.functions.*", REFUSED, "reward function {leaf} was changed: {} -> {}", "none"),
    Rule("*.weights.*", REFUSED, "weight of {leaf}: {:g} -> {:g}"),
    Rule("*.rows", REFUSED, "the training rows were changed"),
    Rule(
        "processes", REFUSED, f"{_PLAIN}, so a step learns from a different number of completions"
    ),
    Rule("template", REFUSED, "the policy's chat template was changed"),
    Rule("policy.device", SHOWN),
    Rule("policy.compute_dtype", SHOWN),
    Rule("policy.backend", SHOWN),
    Rule("versions.*", SHOWN),
    Rule("environment.*", SHOWN, missing=NOT_SET),
    Rule("in_force.*", SHOWN, "effective {name}: {} -> {}", "no such setting"),
)


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
