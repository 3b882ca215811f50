"""The parts of a proof: single checks, each with what was observed and, where it fails, the cause
and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.base.errors import ExportError
from workbench.base.kinds import Fields
from workbench.base.workspace import to_json

LEVELS = ("files", "weights", "tokens", "behaviour")  # cheapest first


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    level: str  # one of LEVELS
    # what was looked at, in a few words: "tensors of the base", "ids of 1,000 rendered prompts"
    name: str
    passed: bool | None  # None: undecided here, or `measured`
    found: str  # what was observed
    cause: str = ""  # one of CAUSES, where it failed
    remedy: str = ""
    measured: bool = False  # for its numbers alone: there is no limit that it could pass

    @property
    def mark(self) -> str:
        """Passed, FAILED, measured or cannot be told."""
        unjudged = "measured" if self.measured else "cannot be told"
        return unjudged if self.passed is None else "passed" if self.passed else "FAILED"


# What can be wrong with an export, in words. A failed check names one of them.
CAUSES = {
    "changed_file": "a file is not the one that was exported",
    "wrong_base": "the base is not the one that the adapter was trained on",
    "other_weights": (
        "its tensors are not the base's with the run's change added once: another base, adapter or"
        " scale, a layer or module left out, or merged twice"
    ),
    "template_lost": "the chat template is missing, or renders other text",
    "double_bos": "prompts begin with two BOS tokens",
    "tokenizer_differs": "the tokenizer gives other ids for the same text",
    "eos_missing": "completions no longer end: the EOS token is missing or another one",
    "differs": "its probabilities are not those of the policy that was trained",
    "worse": "it earns less than the policy that was trained, by more than chance",
    "unreadable": "it cannot be loaded",
}


@dataclass(frozen=True, repr=False)
class Proof:
    """The comparison of an artefact with its run, check by check; a cell shows it as a table."""

    artefact: str  # its folder, as shown
    format: str
    checks: tuple[Check, ...]
    unproven: tuple[str, ...] = ()  # what cannot be told here, in words
    # reward, pass@1, KL per token, EOS share, with intervals
    measured: Fields = field(default_factory=dict)
    into: str = ""  # what it was merged into, in words; empty for an adapter
    note: str = ""  # what became of a proof that was on record

    @property
    def passed(self) -> bool:
        """Whether something was looked at, and nothing failed."""
        return bool(self.checks) and not self.failed

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.passed is False]

    @property
    def untold(self) -> list[str]:
        """What could not be told: names of checks, and levels that were not checked."""
        looked = {check.level for check in self.checks}
        named = [check.name for check in self.checks if check.mark == "cannot be told"]
        return [*dict.fromkeys(named), *(level for level in LEVELS if level not in looked)]

    @property
    def cause(self) -> str:
        """The cause of the first failed check, one of CAUSES; empty if it passed."""
        return next((check.cause for check in self.failed), "")

    @property
    def verdict(self) -> str:
        """One line: passed and what cannot be told, or what is wrong."""
        what = f"{self.artefact}, merged into {self.into}" if self.into else self.artefact
        if not self.passed:
            return f"{what}: FAILED: {CAUSES.get(self.cause, 'nothing was looked at')}"
        untold = f"; cannot be told: {', '.join(self.untold)}" if self.untold else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{what}: passed, {sum(check.passed is True for check in self.checks)}"
            f" checks{untold}{note}"
        )

    def require(self) -> None:
        """ExportError, naming the cause, if it is not the trained policy."""
        if not self.passed:
            first = next(iter(self.failed), Check("files", "", False, "no check was made"))
            raise ExportError(
                f"{self.verdict} ({first.found})",
                rule="an export is the policy that was trained",
                remedy=first.remedy or "prove it again",
            )

    def for_scripts(self) -> Fields:
        """As JSON."""
        return to_json(self) | {"passed": self.passed}

    def __str__(self) -> str:
        lines = [
            f"  {check.mark}: {check.level}: {check.name}: {check.found}" for check in self.checks
        ]
        lines += [f"  remedy: {check.remedy}" for check in self.failed[:1] if check.remedy]
        return "\n".join([self.verdict, *lines, *(f"  unproven: {line}" for line in self.unproven)])

    __repr__ = __str__


class Proofs(list[Proof]):
    """The proofs of several artefacts; a cell shows them as one table."""

    @property
    def passed(self) -> bool:
        return bool(self) and all(proof.passed for proof in self)

    def require(self) -> None:
        """Raise ExportError for the first that did not pass."""
        for proof in self:
            proof.require()

    def __str__(self) -> str:
        failed = [proof.format for proof in self if not proof.passed]
        formats = ", ".join(failed or [proof.format for proof in self])
        last = f"{len(self)} artefacts: {len(self)} passed ({formats})"
        if failed:
            last = f"{len(failed)} of {len(self)} FAILED: {formats}"
        for proof in self:
            share = proof.measured.get("of_the_run")
            if not failed and share and share["high"] < 0.5:
                last += (
                    f"; {proof.format} keeps only {share['share']:.0%} of the run's change: take"
                    " the adapter"
                )
        return "\n".join([*map(str, self), *([last] if len(self) > 1 else [])])

    __repr__ = __str__
