"""(b) What a step costs: TRL and Unsloth, 16 bits and NF4, with the workbench's generation and
without.

The units (`units.py`) of one backend and precision are measured in one process; each keeps what it
found in `arms/<unit>.json`. `arms.json` says how far the plan came, and holds the ratios.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from measuring import say

from gpu.clock import COMPLETIONS
from gpu.hardware import copied_bytes_per_s, least_generation_s, rated_bytes_per_s
from gpu.one_unit import (
    CUT,
    FAILED,
    MEASURED,
    build,
    expected_s,
    file_of,
    limit_s,
    measure,
    model_folder,
)
from gpu.processes import own_process
from gpu.setting import Checks, Contents, Setting, contents, trainer_is
from gpu.units import Unit, plan, unit_of

NOT_REACHED = "not reached"


def run(setting: Setting) -> dict[str, Any]:
    """Measure the units that are not measured yet, in the plan's order, until the time is over;
    leaves `arms.json`.

    Raises:
        RuntimeError: if the model could not be made.
    """
    units = planned(setting)
    copied = (setting.read("arms.json") or {}).get("copied_bytes_per_s") or copied_bytes_per_s(
        setting.device
    )
    _build(setting)
    # processes for which there is no time, or that brought nothing
    over: set[tuple[Any, ...]] = set()
    while batch := _next(setting, [unit for unit in units if setting.wants(unit.name)], over):
        needed_s = setting.sizes.start_s + (
            expected_s(setting, batch[0]) or limit_s(setting, batch[0])
        )
        if setting.left_s() < needed_s:
            say(
                f"{batch[0].name}: not begun; it may take {needed_s:.0f} s, and"
                f" {max(0, setting.left_s()):.0f} s are left"
            )
            over.add(batch[0].process)
            continue  # another one may still fit
        _measure(setting, batch)
        for unit in batch:
            if content := setting.read(file_of(unit)):
                step_s = content.get("step_s")
                say(
                    f"{unit.name}: {content['status']},"
                    f" {f'{step_s:.3g} s a step' if step_s else content.get('error')}"
                )
        if len(_pending(setting, batch)) == len(batch):
            over.add(batch[0].process)
        setting.write("arms.json", index(contents(setting.out), units, copied))
        setting.collect()
    found = index(contents(setting.out), units, copied)
    setting.write("arms.json", found)
    return found


def _build(setting: Setting) -> None:
    if (model_folder(setting) / "config.json").is_file():
        return
    if not setting.fresh:
        build(setting)
        return
    # Not here: what measures must be the first to import the libraries, and to use the GPU's
    # memory.
    status, said = own_process(setting, "model", "--job", "model", limit_s=setting.left_s())
    if status != 0:
        raise RuntimeError(f"the model could not be made, status {status}:\n{said}")


def planned(setting: Setting) -> list[Unit]:
    """The plan for this setting's lengths; a toy has one round."""
    return plan(setting.sizes.completions, 1) if setting.toy else plan(setting.sizes.completions)


def _next(setting: Setting, units: Sequence[Unit], over: set[tuple[Any, ...]]) -> list[Unit]:
    """What the next process is to measure: the pending units that belong to the first one's; none:
    there are none.
    """
    pending = [unit for unit in _pending(setting, units) if unit.process not in over]
    return [unit for unit in pending if unit.process == pending[0].process]


def _pending(setting: Setting, units: Sequence[Unit]) -> list[Unit]:
    """Those that are not measured: without a file, ended before a step was measured, or failed
    after others.

    A unit that failed where it was its process's first is not tried again: take its file away for
    that.
    """

    def pending(unit: Unit) -> bool:
        content = setting.read(file_of(unit))
        if content is None:
            return True
        if content["status"] == FAILED:
            return content.get("nth_in_process", 0) > 0
        return content["status"] != MEASURED and not content.get("step_s")

    return [unit for unit in units if pending(unit)]


def _measure(setting: Setting, batch: Sequence[Unit]) -> None:
    if not setting.fresh:
        measure(setting, batch)
        return
    names = ",".join(unit.name for unit in batch)
    before = {unit: setting.read(file_of(unit)) for unit in batch}
    status, said = own_process(setting, batch[0].name, "--job", names, limit_s=setting.left_s() - 5)
    if status == 0:
        return
    # Out of time, or an end that Python could not catch. The steps until then are in the file of
    # the one that it came to.
    ended = {
        "status": CUT if status is None else FAILED,
        "exit": status,
        "error": said or "its time was over",
    }
    changed = [unit for unit in batch if setting.read(file_of(unit)) != before[unit]]
    unit = changed[-1] if changed else batch[0]
    empty = {"unit": dataclasses.asdict(unit), "arm": unit.arm, "rows": [], "nth_in_process": 0}
    found = (setting.read(file_of(unit)) if changed else None) or empty
    if not changed or found["status"] not in (MEASURED, FAILED):
        setting.write(file_of(unit), {**found, **ended})


# --- reading
# --------------------------------------------------------------------------------------------------


def all_units(found: Contents) -> dict[Unit, dict[str, Any]]:
    """What is in the suite's files, by unit; a file that belongs to none is left out."""
    units = {}
    for name, content in found.items():
        folder, _, stem = name.removesuffix(".json").rpartition("/")
        try:
            units[unit_of(stem)] = content
        except ValueError as error:
            if folder == "arms":
                say(f"{name}: left out: {error}")
    return units


def measured_units(found: Contents) -> dict[Unit, dict[str, Any]]:
    """Those with at least one measured step."""
    return {unit: content for unit, content in all_units(found).items() if content.get("step_s")}


def index(files: Contents, units: Sequence[Unit], copied: float) -> dict[str, Any]:
    """How far the plan came, the share of the ceiling that each unit reached, and the ratios that
    say something.

    Args:
        copied: bandwidth that a copy reached, bytes/s; the ceiling is made of it where the GPU is
            not in the table.
    """
    found, every = measured_units(files), all_units(files)
    status = {unit.name: every[unit]["status"] if unit in every else NOT_REACHED for unit in units}
    failed = {
        unit.name: every[unit].get("error", "") for unit in units if status[unit.name] == FAILED
    }
    return {
        "part": "arms",
        "done": NOT_REACHED not in status.values(),
        "copied_bytes_per_s": copied,
        "status": status,
        "errors": failed,
        "checks": judge(found).found,
        "roofline_share": {
            unit.name: roofline_share(content, copied) for unit, content in found.items()
        },
        "a_over_a": _ratios(
            found, lambda unit: None if unit.variant else dataclasses.replace(unit, variant="again")
        ),
        "trl_over_auto": _ratios(found, _with_trl),
    }


def judge(found: dict[Unit, dict[str, Any]]) -> Checks:
    """Whether each unit trained with the trainer and in the precision that it is named after."""
    checks = Checks()
    for unit, content in found.items():
        if not content.get("trainer"):
            continue
        # On a CPU Unsloth leaves TRL's trainer in its place.
        whose = (
            "unsloth"
            if unit.backend == "unsloth" and content["device"]["kind"] == "cuda"
            else "trl"
        )
        checks.note(
            f"{unit.name}: {whose}'s trainer",
            trainer_is(content["trainer"], whose),
            content["trainer"],
        )
        precision = content["policy"]["precision"]
        checks.note(
            f"{unit.name}: {unit.precision}",
            (precision == "nf4") == (unit.precision == "nf4"),
            precision,
        )
    return checks


def roofline_share(content: dict[str, Any], copied: float | None) -> float | None:
    """Least time that decoding can take on this device over the time that generation took; None
    where it is not known.
    """
    bandwidth = rated_bytes_per_s(content["device"]["name"]) or copied
    if not bandwidth or not all(
        content.get(name) for name in ("generate_s", "weight_bytes", "longest")
    ):
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
    if unit.generation == "trl" or unit.variant:
        return None
    return dataclasses.replace(unit, generation="trl")


def _ratios(
    found: dict[Unit, dict[str, Any]], other: Callable[[Unit], Unit | None]
) -> dict[str, float]:
    """Median step of the unit that belongs to another, over that one's."""
    return {
        unit.name: found[pair]["step_s"] / content["step_s"]
        for unit, content in found.items()
        if (pair := other(unit)) in found
    }
