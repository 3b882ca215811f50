"""What to be sure of before, during and after a run, ticked from the evidence: rows, rewards and
plan, or the run's record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workbench import inspection
from workbench.audit.examination import audit_rewards
from workbench.data.checks import check
from workbench.data.difficulty import load_profile
from workbench.errors import WorkbenchError
from workbench.exporting.passport import PROOF
from workbench.health import ALARM, NOTE, SKIPPED, STATES, WARNING, examine_run
from workbench.inspection.measured import gain_in_words
from workbench.inspection.reading import by_step
from workbench.kinds import Fields
from workbench.printable import printable
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.prepare import plan
from workbench.workspace import find, resolve

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
        lines = [
            f"{box.state}: {box.what}: {box.why}" + f"\n  -> {box.call}" * bool(box.call)
            for box in self
        ]
        return printable(
            "\n".join(
                [*lines, f"{sum(box.state == 'ticked' for box in self)} of {len(self)} ticked"]
            )
        )

    __repr__ = __str__


def checklist(of: RunDirectory | Task | Recipe | Fields | str | Path) -> Checklist:
    """What to be sure of before training, given a recipe or task; during and after it, given a run.
    Nothing is trained.

    >>> wb.checklist(wb.Recipe(task="arithmetic"))[0].state
    'ticked'

    Args:
        of: a run, as `wb.open_run` gives it; a `Task`; or anything that `wb.plan` takes.
    """
    boxes = yaml.safe_load(Path(__file__).with_name("checklist.yaml").read_text(encoding="utf-8"))
    found, seen = (
        Checklist(),
        (_of_run(of, boxes["during"]) if isinstance(of, RunDirectory) else _before(of)),
    )
    for phase in ("during", "after") if isinstance(of, RunDirectory) else ("before",):
        for key, box in boxes[phase].items():
            ticked, why = seen.get(key, (None, "not looked at"))
            found.append(
                Box(phase, box["what"], _STATES[ticked], why, "" if ticked else box["call"])
            )
    return found


def _tried(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except WorkbenchError as error:
        return error


def _judged(found: object, judge: Callable[[Any], _Seen]) -> _Seen:
    return (
        (False, f"{found.value}: {found.remedy}")
        if isinstance(found, WorkbenchError)
        else judge(found)
    )


def _before(of: Any) -> dict[str, _Seen]:
    if isinstance(of, Task):
        return _of_task(of)
    made = _tried(lambda: plan(of))
    seen = {"plan": _judged(made, lambda own: (True, own.words))}
    if isinstance(made, WorkbenchError):
        return seen
    cap, every, longest = (
        made.settings["max_completion_length"],
        made.settings["logging_steps"],
        made.longest_tokens,
    )
    room, memory = made.recipe.policy.max_seq_length, made.memory
    seen["fits"] = (
        longest and longest + cap <= room,
        f"longest prompt {longest} + completion {cap}, of {room} tokens",
    )
    seen["memory"] = (
        (memory.fits, memory.verdict) if memory else (None, "no card here to compare with")
    )
    seen["logged"] = (
        every == 1,
        f"a row of metrics every {every:g} steps; trackers: {made.settings['report_to']}",
    )
    return seen | (_of_task(made.task) if made.task else {})


def _of_task(task: Task) -> dict[str, _Seen]:
    some, apart = (list(itertools.islice(each, _ROWS)) for each in (task.rows, task.held_out))
    column = task.answer_column if some and task.answer_column in some[0] else "none"
    report = _tried(
        lambda: check(some, answer_column=column, other=apart or None, progress=lambda _: None)
    )
    audit = _tried(lambda: audit_rewards(task))
    folder = find(task.source).parent if task.source else resolve("tasks") / task.name
    profile = _tried(lambda: load_profile(folder / "difficulty.jsonl"))
    return {
        "rows": _judged(report, lambda own: (own.kept_rows == own.read, str(own).splitlines()[0])),
        "held_out": (len(task.held_out) > 0, f"{len(task.held_out):,} held-out prompts"),
        "rewards": _judged(audit, lambda own: (own.ok, own.verdict)),
        "cases": _judged(audit, lambda own: (own.cases > 0, f"{own.cases} regression cases")),
        "difficulty": _judged(
            profile, lambda own: (own.dead_groups(8) <= 0.5, str(own).splitlines()[0])
        ),
    }


def _of_run(run: RunDirectory, during: dict[str, Fields]) -> dict[str, _Seen]:
    seen, verdicts = (
        {},
        sorted(examine_run(run, last=200), key=lambda each: STATES.index(each.state)),
    )
    for key, box in during.items():
        if own := [each for each in verdicts if each.name in box.get("verdicts", ())]:
            unsure = [
                each
                for each in own
                if each.state == SKIPPED or (each.state == NOTE and each.name in _TOO_EARLY)
            ]
            wrong = own[0].state in (ALARM, WARNING)
            seen[key] = (
                not wrong if wrong or not unsure else None,
                (own if wrong else [*unsure, *own])[0].line,
            )
    evaluation = _tried(lambda: inspection.read_evaluation(run))
    measured = None if isinstance(evaluation, WorkbenchError) else evaluation
    hacks = _tried(lambda: inspection.hacking(run, measured).verdict)
    result, manifest = run.result(), run.manifest()
    made = sorted(file.parent.name for file in run.export.glob("[!.]*/passport.json"))
    proofs = {
        form: _tried(lambda form=form: run.read_json(f"{run.export.name}/{form}/{PROOF}"))
        for form in made
    }
    passed = [
        form for form, proof in proofs.items() if isinstance(proof, dict) and proof.get("passed")
    ]
    weights, versions = (
        (manifest.get("rewards") or {}).get("weights") or {},
        manifest.get("versions") or {},
    )
    seen |= {
        key: _judged(evaluation, lambda own, judge=judge: judge(own.found))
        for key, judge in _MEASURED.items()
    }
    return seen | {
        "failed": (
            {"failed": False, "killed": None}.get(result["status"], True),
            str(result.get("error", run.state)),
        ),
        "completions": _judged(
            _tried(lambda: len(by_step(run))),
            lambda steps: (steps > 0, f"{steps} steps are on record"),
        ),
        "meant": _judged(
            hacks, lambda said: ({"no": True, "REWARD": False}.get(said.partition(" ")[0]), said)
        ),
        "merged": (made not in ([], ["adapter"]), f"exported: {', '.join(made) or 'nothing'}"),
        "proven": (bool(made) and passed == made, f"proven: {', '.join(passed) or 'nothing'}"),
        "documented": (
            bool(weights),
            "recipe.yaml; " + ", ".join(f"{name} {weight:g}" for name, weight in weights.items()),
        ),
        "again": (
            bool(made and versions),
            f"seed {run.recipe().seed}, trl {versions.get('trl')}, {len(made)} passports",
        ),
    }


def _format_kept(found: Fields) -> _Seen:
    before, after = found["before"]["format"], found["after"]["format"]
    return (
        (None, "the task names no format_by")
        if after is None
        else (after >= before, f"{before:.0%} -> {after:.0%}")
    )


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
