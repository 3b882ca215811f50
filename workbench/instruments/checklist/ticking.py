"""What to be sure of before, during and after a run, ticked from the evidence: rows, rewards and
plan, or the run's record.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from workbench import inspection
from workbench.audit.examination import audit_rewards
from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import find, resolve
from workbench.base.yaml_text import packaged
from workbench.data.checks import check
from workbench.data.difficulty import load_profile
from workbench.exporting.passport import PROOF
from workbench.health import ALARM, NOTE, SKIPPED, WARNING, Verdict, examine_run
from workbench.health.verdicts import worst_first
from workbench.inspection.measured import gain_in_words
from workbench.inspection.reading import by_step
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.plan.prepare import plan

_STATES = {True: "ticked", False: "open", None: "cannot be told"}
_ROWS = 1_000  # of the task, that are looked at
_TOO_EARLY = ("slow_learning", "kl_not_measured")  # a note of these says that it cannot be told
_Seen = tuple[bool | None, str]  # whether a box is ticked, None: cannot be told; and what was seen


class Box(NamedTuple):
    """One thing to be sure of; `call` ticks it, where it is "open" or "cannot be told"."""

    when: str
    what: str
    state: str
    why: str
    call: str


class Checklist(list[Box]):
    """Boxes, which a cell shows as a table."""

    def __str__(self) -> str:
        lines = []
        for box in self:
            lines.append(f"{box.state}: {box.what}: {box.why}")
            if box.call:
                lines.append(f"  -> {box.call}")
        ticked = sum(box.state == _STATES[True] for box in self)
        return printable("\n".join([*lines, f"{ticked} of {len(self)} ticked"]))

    __repr__ = __str__


def checklist(of: RunDirectory | Task | Recipe | Fields | str | Path) -> Checklist:
    """What to be sure of before training, given a recipe or task; during and after it, given a run.
    Nothing is trained.

    >>> wb.checklist(wb.Recipe(task="arithmetic"))[0].state
    'ticked'

    Args:
        of: a run, as `wb.open_run` gives it; a `Task`; or anything that `wb.plan` takes.
    """
    boxes = packaged(Path(__file__).with_suffix(".yaml"))
    if isinstance(of, RunDirectory):
        seen, phases = _of_run(of, boxes["during"]), ("during", "after")
    else:
        seen, phases = _of_task(of) if isinstance(of, Task) else _of_plan(of), ("before",)
    ticks = Checklist()
    for phase in phases:
        for key, box in boxes[phase].items():
            ticked, why = seen.get(key, (None, "not looked at"))
            call = "" if ticked else box["call"]
            ticks.append(Box(phase, box["what"], _STATES[ticked], why, call))
    return ticks


def _look(look: Callable[[], object], **judges: Callable[[Any], _Seen]) -> dict[str, _Seen]:
    # What one look says of some boxes; an error that says what to do leaves them open.
    try:
        result = look()
    except WorkbenchError as error:
        return dict.fromkeys(judges, (False, f"{error.value}: {error.remedy}"))
    return {box: judge(result) for box, judge in judges.items()}


def _first_line(result: object) -> str:
    return str(result).splitlines()[0]


def _of_plan(of: Any) -> dict[str, _Seen]:
    try:
        made = plan(of)
    except WorkbenchError as error:
        return {"plan": (False, f"{error.value}: {error.remedy}")}
    cap, every = made.settings["max_completion_length"], made.settings["logging_steps"]
    longest, room, memory = made.longest_tokens, made.recipe.policy.max_seq_length, made.memory
    return {
        "plan": (True, made.words),
        "fits": (
            bool(longest) and longest + cap <= room,
            f"longest prompt {longest} + completion {cap}, of {room} tokens",
        ),
        "memory": (
            (memory.fits, memory.verdict) if memory else (None, "no card here to compare with")
        ),
        "logged": (
            every == 1,
            f"a row of metrics every {every:g} steps; trackers: {made.settings['report_to']}",
        ),
        **(_of_task(made.task) if made.task else {}),
    }


def _of_task(task: Task) -> dict[str, _Seen]:
    some, apart = (list(itertools.islice(each, _ROWS)) for each in (task.rows, task.held_out))
    column = task.answer_column if some and task.answer_column in some[0] else "none"
    folder = find(task.source).parent if task.source else resolve("tasks") / task.name
    checked: Fields = {"answer_column": column, "other": apart or None, "progress": lambda _: None}
    return {
        **_look(
            lambda: check(some, **checked),
            rows=lambda report: (report.kept_rows == report.read, _first_line(report)),
        ),
        "held_out": (len(task.held_out) > 0, f"{len(task.held_out):,} held-out prompts"),
        **_look(
            lambda: audit_rewards(task),
            rewards=lambda audit: (audit.ok, audit.verdict),
            cases=lambda audit: (audit.cases > 0, f"{audit.cases} regression cases"),
        ),
        **_look(
            lambda: load_profile(folder / "difficulty.jsonl"),
            difficulty=lambda profile: (profile.dead_groups(8) <= 0.5, _first_line(profile)),
        ),
    }


def _of_run(run: RunDirectory, during: dict[str, Fields]) -> dict[str, _Seen]:
    verdicts = worst_first(examine_run(run, last=200))
    seen = {}
    for key, box in during.items():
        if own := [each for each in verdicts if each.name in box.get("verdicts", ())]:
            seen[key] = _of_verdicts(own)
    evaluation = None
    with contextlib.suppress(WorkbenchError):
        evaluation = inspection.read_evaluation(run)
    meant = {"no": True, "REWARD": False}  # a verdict on hacks by its first word
    result, manifest = run.result(), run.manifest()
    weights = (manifest.get("rewards") or {}).get("weights") or {}
    versions = manifest.get("versions") or {}
    made = sorted(file.parent.name for file in run.export.glob("[!.]*/passport.json"))
    passed = [form for form in made if _passed(run, form)]
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    return {
        **seen,
        **_look(lambda: (evaluation or inspection.read_evaluation(run)).found, **_MEASURED),
        "failed": (
            {"failed": False, "killed": None}.get(result["status"], True),
            str(result.get("error", run.state)),
        ),
        **_look(
            lambda: len(by_step(run)),
            completions=lambda steps: (steps > 0, f"{steps} steps are on record"),
        ),
        **_look(
            lambda: inspection.hacking(run, evaluation).verdict,
            meant=lambda verdict: (meant.get(verdict.partition(" ")[0]), verdict),
        ),
        "merged": (made not in ([], ["adapter"]), f"exported: {', '.join(made) or 'nothing'}"),
        "proven": (bool(made) and passed == made, f"proven: {', '.join(passed) or 'nothing'}"),
        "documented": (bool(weights), f"recipe.yaml; {listed}"),
        "again": (
            bool(made and versions),
            f"seed {run.recipe().seed}, trl {versions.get('trl')}, {len(made)} passports",
        ),
    }


def _of_verdicts(ordered: list[Verdict]) -> _Seen:
    worst = ordered[0]
    if worst.state in (ALARM, WARNING):
        return False, worst.line
    for each in ordered:
        if each.state == SKIPPED or (each.state == NOTE and each.name in _TOO_EARLY):
            return None, each.line
    return True, worst.line


def _passed(run: RunDirectory, form: str) -> bool:
    try:
        proof = run.read_json(f"{run.export.name}/{form}/{PROOF}")
    except WorkbenchError:
        return False
    return isinstance(proof, dict) and bool(proof.get("passed"))


def _format_kept(found: Fields) -> _Seen:
    before, after = found["before"]["format"], found["after"]["format"]
    if after is None:
        return None, "the task names no format_by"
    return after >= before, f"{before:.0%} -> {after:.0%}"


_MEASURED: dict[str, Callable[[Fields], _Seen]] = {
    "format": _format_kept,
    "gain": lambda found: (found["gain"]["low"] > 0, gain_in_words(found)),
    "enough": lambda found: (
        not found["needed"],
        f"{found['prompts']} held-out prompts, {found['samples']} completions each",
    ),
    "taught": lambda found: (
        None if found["verdict"]["word"] == _STATES[None] else True,
        "{word}: {why}".format(**found["verdict"]),
    ),
}
