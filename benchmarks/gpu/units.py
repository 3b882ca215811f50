"""The arms, one unit each: which there are, in which order they are measured, and what their names are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {"transformers": "TRL", "unsloth": "Unsloth"}
ROUNDS = 3


@dataclass(frozen=True)
class Unit:
    """One arm at one length in one round: what one process measures."""

    backend: str  # "transformers" or "unsloth": the recipe's word
    precision: str  # "bf16" or "nf4"
    generation: str  # "auto" or "trl": the recipe's word
    completion: int  # tokens
    round: int = 0
    again: bool = False  # the second of the A/A pair

    @property
    def name(self) -> str:
        """Its file's name without the end: `unsloth-nf4-auto-512-r0`; `-again` for the second of a pair."""
        parts = [self.backend, self.precision, self.generation, str(self.completion), f"r{self.round}"]
        return "-".join([*parts, "again"] if self.again else parts)

    @property
    def arm(self) -> str:
        """Its name in a table, without length and round."""
        path = "generation: trl" if self.generation == "trl" else "generation: auto"
        return f"{NAMES[self.backend]} {self.precision}, {path}" + (", again" if self.again else "")


def unit_of(name: str) -> Unit:
    """The unit of a name.

    Raises:
        ValueError: if no unit has that name.
    """
    parts = name.split("-")
    again = parts[-1] == "again"
    try:
        backend, precision, generation, completion, turn = parts[:-1] if again else parts
        unit = Unit(backend, precision, generation, int(completion), int(turn.removeprefix("r")), again)
    except ValueError:
        unit = None
    if unit is None or unit.name != name or unit.backend not in NAMES:
        raise ValueError(f"{name!r} is no unit of the arms; one is called, for example, unsloth-nf4-auto-512-r0")
    return unit


# Of what most people run, with the pair that says how much of a difference is noise; then everything else.
FIRST = (
    Unit("unsloth", "nf4", "auto", 0),
    Unit("transformers", "bf16", "trl", 0),
    Unit("transformers", "bf16", "auto", 0),
    Unit("unsloth", "nf4", "auto", 0, again=True),
)
REST = (
    Unit("transformers", "nf4", "auto", 0),
    Unit("unsloth", "bf16", "auto", 0),
    Unit("transformers", "nf4", "trl", 0),
    Unit("unsloth", "nf4", "trl", 0),
    Unit("unsloth", "bf16", "trl", 0),
)


def plan(lengths: Sequence[int], rounds: int = ROUNDS) -> list[Unit]:
    """All units, by what each would tell if it were the last one that is reached.

    Short completions of what most people run, the same with long ones, then the rest, and all of it again in the
    next round, in which every block begins with another arm.

    Args:
        lengths: the short and the long completion, in tokens.
    """
    short, long = lengths
    found = []
    for turn in range(rounds):
        for block, length in ((FIRST, short), (FIRST[:3], long), (REST, short), (REST, long)):
            begin = turn % len(block)
            for unit in (*block[begin:], *block[:begin]):
                found.append(dataclasses.replace(unit, completion=length, round=turn))
    return found
