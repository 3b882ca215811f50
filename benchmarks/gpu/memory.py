"""(c) The workbench's memory estimate against the peak that the arms measured; nothing is run for
it.
"""

from __future__ import annotations

from typing import Any

from gpu.arms import measured_units
from gpu.setting import Checks, Contents, Setting, contents

LEAST, MOST, SHARE = (
    -0.05,
    0.10,
    0.9,
)  # the target: never more than 5 % too little, at most 10 % too much for nine in ten


def run(setting: Setting) -> dict[str, Any]:
    """Compare, and leave `memory.json`. A toy is not judged: the GPU's own workspaces are larger
    than it.
    """
    rows = compare(contents(setting.out))
    checks = Checks()

    def note(name: str, passed: bool, found: float) -> None:
        checks.note(name, None if setting.toy else passed, found)

    measured = [row for row in rows if row["ratio"] is not None]
    for row in measured:
        off = row["ratio"] - 1
        note(
            f"{row['unit']}: the measured peak lies within the estimate's ends",
            row["within"],
            row["ratio"],
        )
        note(f"{row['unit']}: at most {-LEAST:.0%} too little", off >= LEAST, off)
    if measured:
        share = sum(LEAST <= row["ratio"] - 1 <= MOST for row in measured) / len(measured)
        note(f"{LEAST:+.0%} to {MOST:+.0%} for {SHARE:.0%} of them", share >= SHARE, share)
    found = {
        "part": "memory",
        "done": bool(rows),
        "rows": rows,
        "checks": checks.found,
        "target": [LEAST, MOST, SHARE],
    }
    setting.write("memory.json", found)
    return found


def compare(found: Contents) -> list[dict[str, Any]]:
    """One row for each unit of the first round: predicted and measured peak of what torch counts,
    in bytes.

    `ratio` is predicted/measured; None, and `within` too, where no GPU measured anything.
    """
    rows = []
    for unit, content in measured_units(found).items():
        if unit.round or unit.again or not content.get("estimate"):
            continue
        predicted = counted_peak(content["estimate"])
        measured = content.get("allocated_bytes")
        rows.append(
            {
                "unit": unit.name,
                "arm": unit.arm,
                "completion": unit.completion,
                "predicted": predicted,
                "measured_bytes": measured,
                "reserved_bytes": content.get("reserved_bytes"),
                "ratio": predicted["bytes"] / measured if measured else None,
                "within": predicted["low"] <= measured <= predicted["high"] if measured else None,
            }
        )
    return rows


def counted_peak(estimate: dict[str, Any]) -> dict[str, Any]:
    """The larger phase of an estimate, of the parts that torch's counter sees: phase, bytes, low,
    high.
    """
    phases = {
        phase: {
            end: sum(
                part[end]
                for part in estimate["parts"]
                if part["allocated"] and part["phase"] in ("always", phase)
            )
            for end in ("bytes", "low", "high")
        }
        for phase in estimate["phases"]
    }
    phase = max(phases, key=lambda name: phases[name]["bytes"])
    ends = {end: max(sizes[end] for sizes in phases.values()) for end in ("bytes", "low", "high")}
    return {"phase": phase, **ends}
