"""(b) What a step costs: TRL and Unsloth, 16 bits and NF4, with the workbench's generation and without.

Each unit (`units.py`) is measured in a process of its own and keeps what it found in `arms/<unit>.json`; `arms.json` says how
far the plan came, and holds the ratios.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import say

from gpu.arm import COMPLETIONS, CUT, FAILED, MEASURED, build, measure
from gpu.hardware import copied_bytes_per_s, least_generation_s, rated_bytes_per_s
from gpu.processes import own_process
from gpu.setting import Checks, Setting, read, trainer_is
from gpu.units import Unit, plan, unit_of

NOT_REACHED = "not reached"


def run(setting: Setting) -> dict[str, Any]:
    """Measure the units that are not measured yet, in the plan's order, until the time is over; leaves `arms.json`.

    A unit that failed is not tried again: take its file away for that.
    """
    units = planned(setting)
    copied = (setting.read("arms.json") or {}).get("copied_bytes_per_s") or copied_bytes_per_s(setting.device)
    if setting.fresh:
        # Not here: what measures must be the first to import the libraries, and to use the GPU's memory.
        own_process(setting, "model", "--job", "model", limit_s=setting.left_s())
    else:
        build(setting)
    too_long: set[int] = set()  # lengths for which the time did not suffice
    took_s: dict[int, float] = {}  # by length: the longest that a unit took, start and end included
    for unit in _pending(setting, [unit for unit in units if setting.wants(unit.name)]):
        guess_s = took_s.get(unit.completion, _guess_s(setting, unit))
        if setting.left_s() < guess_s:
            if unit.completion not in too_long:
                say(
                    f"{unit.name}: not begun; it may take {guess_s:.0f} s, and {max(0, setting.left_s()):.0f} s are left"
                )
            too_long.add(unit.completion)
            continue  # a shorter one may still fit
        started = time.monotonic()
        found = _measured(setting, unit)
        took_s[unit.completion] = max(took_s.get(unit.completion, 0.0), time.monotonic() - started)
        step_s = found.get("step_s")
        say(f"{unit.name}: {found['status']}, " + (f"{step_s:.3g} s a step" if step_s else str(found.get("error"))))
        setting.write("arms.json", index(setting.out, units, copied))
    found = index(setting.out, units, copied)
    setting.write("arms.json", found)
    return found


def planned(setting: Setting) -> list[Unit]:
    """The plan for this setting's lengths; a toy has one round."""
    return plan(setting.sizes.completions, 1) if setting.toy else plan(setting.sizes.completions)


def file_of(unit: Unit) -> str:
    """The unit's file in the out folder."""
    return f"arms/{unit.name}.json"


def _pending(setting: Setting, units: Sequence[Unit]) -> list[Unit]:
    """Those without a file in the plan's order, then those that were ended before a step was measured."""
    contents = {unit: setting.read(file_of(unit)) for unit in units}
    ended = [
        unit
        for unit, content in contents.items()
        if content and content["status"] not in (MEASURED, FAILED) and not content.get("step_s")
    ]
    return [unit for unit in units if contents[unit] is None] + ended


def _guess_s(setting: Setting, unit: Unit) -> float:
    limit_s = setting.sizes.arm_s[setting.sizes.completions.index(unit.completion)]
    return setting.sizes.start_s + (1 if setting.toy else limit_s)


def _measured(setting: Setting, unit: Unit) -> dict[str, Any]:
    if not setting.fresh:
        return measure(setting, unit)
    status, said = own_process(setting, unit.name, "--job", unit.name, limit_s=setting.left_s() - 5)
    found = setting.read(file_of(unit)) or {"unit": dataclasses.asdict(unit), "arm": unit.arm, "rows": []}
    if found.get("status") not in (MEASURED, FAILED):
        # Out of time, or an end that Python could not catch. The steps until then are in the file, and it is tried again.
        found |= {"status": CUT if status is None else FAILED, "exit": status, "error": said or "its time was over"}
        setting.write(file_of(unit), found)
    return found


# --- reading ------------------------------------------------------------------------------------------------------


def measured_units(out: Path) -> dict[Unit, dict[str, Any]]:
    """What is in the files of the out folder, by unit; those with at least one measured step."""
    found = {unit_of(file.stem): read(file) for file in sorted((out / "arms").glob("*.json"))}
    return {unit: content for unit, content in found.items() if content and content.get("step_s")}


def index(out: Path, units: Sequence[Unit], copied: float) -> dict[str, Any]:
    """How far the plan came, the share of the ceiling that each unit reached, and the ratios that say something.

    Args:
        copied: bandwidth that a copy reached, bytes/s; the ceiling is made of it where the GPU is not in the table.
    """
    found = measured_units(out)
    status = {}
    for unit in units:
        content = read(out / file_of(unit))
        status[unit.name] = content["status"] if content else NOT_REACHED
    return {
        "part": "arms",
        "done": NOT_REACHED not in status.values(),
        "copied_bytes_per_s": copied,
        "status": status,
        "errors": {
            unit.name: content["error"]
            for unit in units
            if (content := read(out / file_of(unit))) and content["status"] == FAILED and content.get("error")
        },
        "checks": judge(found).found,
        "roofline_share": {unit.name: roofline_share(content, copied) for unit, content in found.items()},
        "a_over_a": _ratios(found, lambda unit: None if unit.again else dataclasses.replace(unit, again=True)),
        "trl_over_auto": _ratios(found, _with_trl),
    }


def judge(found: dict[Unit, dict[str, Any]]) -> Checks:
    """Whether each unit trained with the trainer and in the precision that it is named after."""
    checks = Checks()
    for unit, content in found.items():
        if content["status"] != MEASURED:
            continue
        # On a CPU Unsloth leaves TRL's trainer in its place.
        whose = "unsloth" if unit.backend == "unsloth" and content["device"]["kind"] == "cuda" else "trl"
        checks.note(f"{unit.name}: {whose}'s trainer", trainer_is(content["trainer"], whose), content["trainer"])
        precision = content["policy"]["precision"]
        checks.note(f"{unit.name}: {unit.precision}", (precision == "nf4") == (unit.precision == "nf4"), precision)
    return checks


def roofline_share(content: dict[str, Any], copied: float | None) -> float | None:
    """Least time that decoding can take on this device over the time that generation took; None where it is not known."""
    bandwidth = rated_bytes_per_s(content["device"]["name"]) or copied
    if not bandwidth or not all(content.get(name) for name in ("generate_s", "weight_bytes", "longest")):
        return None
    least_s = least_generation_s(
        bandwidth=bandwidth,
        weight_bytes=content["weight_bytes"],
        token_bytes=content["token_bytes"],
        sequences=COMPLETIONS,
        prompt=content["prompt"],
        steps=round(content["longest"]),
    )
    return least_s / content["generate_s"]


def _with_trl(unit: Unit) -> Unit | None:
    if unit.generation == "trl" or unit.again:
        return None
    return dataclasses.replace(unit, generation="trl")


def _ratios(found: dict[Unit, dict[str, Any]], other: Any) -> dict[str, float]:
    """Median step of the unit that belongs to another, over that one's."""
    return {
        unit.name: found[pair]["step_s"] / content["step_s"]
        for unit, content in found.items()
        if (pair := other(unit)) in found
    }
