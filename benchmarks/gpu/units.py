"""The arms, one unit each: which there are, in which order they are measured, and what their names
are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {"transformers": "TRL", "unsloth": "Unsloth"}
VARIANTS = {
    "": "",
    "again": "again",  # the second of the A/A pair
    "unchecked": "no gradient checkpointing",
}
ROUNDS = 3


@dataclass(frozen=True)
class Unit:
    """One arm at one length in one round."""

    backend: str  # "transformers" or "unsloth": the recipe's word
    precision: str  # "bf16" or "nf4"
    generation: str  # "auto" or "trl": the recipe's word
    completion: int  # tokens
    round: int = 0
    variant: str = ""  # a key of VARIANTS

    @property
    def name(self) -> str:
        """Its file's name without the end: `unsloth-nf4-auto-512-r0`,
        `unsloth-nf4-auto-512-r0-again`.
        """
        parts = [
            self.backend,
            self.precision,
            self.generation,
            str(self.completion),
            f"r{self.round}",
            self.variant,
        ]
        return "-".join(part for part in parts if part)

    @property
    def arm(self) -> str:
        """Its name in a table, without length and round."""
        variant = VARIANTS[self.variant]
        return (
            f"{NAMES[self.backend]} {self.precision}, generation:"
            f" {self.generation}{variant and f', {variant}'}"
        )

    @property
    def again(self) -> bool:
        """Whether it is the second of the A/A pair."""
        return self.variant == "again"

    @property
    def checkpointing(self) -> bool:
        """Whether the backward pass computes activations again."""
        return self.variant != "unchecked"

    @property
    def process(self) -> tuple[str, str, int, bool]:
        """Units that share this are measured in one process, with one policy: loading takes longer
        than a step.
        """
        return self.backend, self.precision, self.round, self.checkpointing


def unit_of(name: str) -> Unit:
    """The unit of a name.

    Raises:
        ValueError: if no unit has that name.
    """
    parts = name.split("-")
    try:
        backend, precision, generation, completion, turn, *variant = parts
        unit = Unit(
            backend, precision, generation, int(completion), int(turn.removeprefix("r")), *variant
        )
    except (TypeError, ValueError):
        unit = None
    if (
        unit is None
        or unit.name != name
        or unit.backend not in NAMES
        or unit.variant not in VARIANTS
    ):
        raise ValueError(
            f"{name!r} is no unit of the arms; one is called, for example, unsloth-nf4-auto-512-r0"
        )
    return unit


# By process: (backend, precision), and of each (generation, whether long, variant). With Unsloth on
# a GPU `trl` would be `auto` measured again, because Unsloth decodes in both; so it has the A/A
# pair instead.
_UNSLOTH = (("auto", False, ""), ("auto", True, ""))
_TRL = (("trl", False, ""), ("auto", False, ""), ("auto", True, ""), ("trl", True, ""))
PROCESSES = (
    ("unsloth", "nf4", (_UNSLOTH[0], ("auto", False, "again"), _UNSLOTH[1])),
    ("transformers", "bf16", _TRL),
    ("unsloth", "bf16", _UNSLOTH),
    ("unsloth", "nf4", (("auto", False, "unchecked"),)),
    ("transformers", "nf4", _TRL),
)


def plan(lengths: Sequence[int], rounds: int = ROUNDS) -> list[Unit]:
    """All units, process by process, by what each would tell if it were the last one that is
    reached.

    What most people run comes first, with the pair that says how much of a difference is noise;
    then TRL alone; then the rest. Later rounds are all of it again, and begin with another process.

    Args:
        lengths: the short and the long completion, in tokens.
    """
    found = []
    for turn in range(rounds):
        begin = turn % len(PROCESSES)
        for backend, precision, kinds in (*PROCESSES[begin:], *PROCESSES[:begin]):
            for generation, long, variant in kinds:
                found.append(Unit(backend, precision, generation, lengths[long], turn, variant))
    return found


def kinds(lengths: Sequence[int]) -> list[Unit]:
    """One of each arm and length, for a table; the second of the A/A pair is no arm."""
    found = {
        dataclasses.replace(unit, round=0): None for unit in plan(lengths, 1) if not unit.again
    }
    return sorted(found, key=lambda unit: (unit.completion, unit.arm))
