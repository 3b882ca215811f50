"""What to be sure of before, during and after a run, ticked by what is there: rows, rewards and plan, or the run's record."""

from __future__ import annotations

import itertools
import json
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
from workbench.inspection.evaluation import gain_in_words
from workbench.inspection.reading import by_step
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.prepare import plan

_STATES = {True: "ticked", False: "open", None: "cannot be told"}
_ROWS = 1_000  # of the task, that are looked at
_TOO_EARLY = ("slow_learning", "kl_not_measured")  # a note of these says that it cannot be told
_Seen = tuple[bool | None, str]  # whether a box is ticked (None: cannot be told), and by what


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
        lines = [f"{box.state}: {box.what}: {box.why}" + f"\n  -> {box.call}" * bool(box.call) for box in self]
        return "\n".join([*lines, f"{sum(box.state == 'ticked' for box in self)} of {len(self)} ticked"])

    __repr__ = __str__


def checklist(of: RunDirectory | Task | Recipe | dict[str, Any] | str | Path) -> Checklist:
    """What to be sure of before training, given a recipe or task; during and after it, given a run. Nothing is trained.

    >>> wb.checklist(wb.Recipe(task="arithmetic"))[0].state
    'ticked'

    Args:
        of: a run, as `wb.open_run` gives it; a `Task`; or whatever `wb.plan` takes.
    """
    text = Path(__file__).with_name("checklist.yaml").read_text(encoding="utf-8")
    found, boxes = Checklist(), yaml.safe_load(text)
    look, phases = (_of_run, ("during", "after")) if isinstance(of, RunDirectory) else (_before, ("before",))
    seen = look(of, boxes)
    for when, key, box in ((when, key, box) for when in phases for key, box in boxes[when].items()):
        ticked, why = seen.get(f"{when} {key}", (None, "nobody looked"))
        found.append(Box(when, box["what"], _STATES[ticked], why, "" if ticked else box["call"]))
    return found


def _tried(look: Callable[[], _Seen]) -> _Seen:
    try:
        return look()
    except WorkbenchError as error:
        return False, f"{error.value}: {error.remedy}"


def _before(of: Any, _: Any) -> dict[str, _Seen]:
    made, seen = None, {}
    if not isinstance(of, Task):
        try:
            made = plan(of)
        except WorkbenchError as error:
            return {"before plan": (False, f"{error.value}: {error.remedy}")}
        settings, room, longest = made.settings, made.recipe.policy.max_seq_length, made.longest_tokens
        need = None if longest is None else longest + settings["max_completion_length"]
        memory = (made.memory.fits, made.memory.verdict) if made.memory else (None, "no card here to compare with")
        every = f"a row of metrics every {settings['logging_steps']:g} steps; trackers: {settings['report_to']}"
        seen = {"plan": (True, made.words), "memory": memory, "logged": (settings["logging_steps"] == 1, every)}
        seen["lengths"] = (need and need <= room, f"longest prompt and completion {need} tokens, of {room}")
    if (task := of if made is None else made.task) is not None:
        seen |= _of_task(task)
    return {f"before {key}": value for key, value in seen.items()}


def _of_task(task: Task) -> dict[str, _Seen]:
    def rows() -> _Seen:
        some, apart = (list(itertools.islice(each, _ROWS)) for each in (task.rows, task.held_out))
        column = task.answer_column if some and task.answer_column in some[0] else "none"
        report = check(some, answer_column=column, other=apart or None, progress=lambda _: None)
        reasons = "".join(f"; {count}: {reason}" for reason, count in report.reasons.items())
        return report.kept_rows == report.read, f"{report.kept_rows:,} of {report.read:,} rows{reasons}"

    def difficulty() -> _Seen:
        profile = load_profile(Path(task.source).absolute().parent / "difficulty.jsonl")
        shares = ", ".join(f"{share:.0%} {which}" for which, share in profile.shares.items())
        return profile.dead_groups(8) <= 0.5, f"solved {shares}"

    def rewards() -> _Seen:
        nonlocal cases
        audit = audit_rewards(task)
        cases = audit.cases
        return audit.ok, audit.verdict

    cases = 0
    seen = {"rows": _tried(rows), "difficulty": _tried(difficulty), "rewards": _tried(rewards)}
    seen["held_out"] = (len(task.held_out) > 0, f"{len(task.held_out):,} held-out prompts")
    return seen | {"cases": (cases > 0, f"{cases} regression cases")}


def _of_run(run: RunDirectory, boxes: Any) -> dict[str, _Seen]:
    seen, verdicts = {}, sorted(examine_run(run, last=200), key=lambda each: STATES.index(each.state))
    for key, box in boxes["during"].items():
        if own := [each for each in verdicts if each.name in box.get("verdicts", ())]:
            unsure = [each for each in own if each.state == SKIPPED or (each.state == NOTE and each.name in _TOO_EARLY)]
            wrong = own[0].state in (ALARM, WARNING)
            seen[f"during {key}"] = (None if unsure and not wrong else not wrong, (own if wrong else [*unsure, *own])[0].line)
    result, manifest = run.result(), run.manifest()
    seen["during memory"] = (result["status"] != "failed", str(result.get("error", run.state)))
    seen["during completions"] = _tried(lambda: (True, f"{len(by_step(run))} steps are on record"))
    evaluation, hacks = None, "no record"
    try:
        hacks = inspection.hacking(run).verdict
        evaluation = inspection.read_evaluation(run)
        hacks = inspection.hacking(run, evaluation).verdict
    except WorkbenchError:
        unmeasured = ("during format", "after gain", "after enough", "after taught")
        seen |= dict.fromkeys(unmeasured, (False, "not measured on held-out prompts"))
    else:
        found = evaluation.found
        before, after, word = found["before"]["format"], found["after"]["format"], found["verdict"]["word"]
        kept = (None, "the task names no format_by") if after is None else (after >= before, f"{before:.0%} -> {after:.0%}")
        prompts = f"{found['prompts']} held-out prompts, {found['samples']} completions each"
        seen |= {"during format": kept, "after gain": (found["gain"]["low"] > 0, gain_in_words(found))}
        seen["after enough"] = (not found["needed"], prompts + f"; {found['needed']} more" * bool(found["needed"]))
        seen["after taught"] = (None if word == _STATES[None] else True, f"{word}: {found['verdict']['why']}")
    seen["after meant"] = ({"no": True, "REWARD": False}.get(hacks.partition(" ")[0]), hacks)
    made = sorted(file.parent.name for file in run.export.glob("[!.]*/passport.json"))
    proofs = [file for form in made if (file := run.export / form / PROOF).is_file()]
    passed = [file.parent.name for file in proofs if json.loads(file.read_text(encoding="utf-8")).get("passed")]
    seen["after merged"] = (made not in ([], ["adapter"]), f"exported: {', '.join(made) or 'nothing'}")
    seen["after proven"] = (bool(made) and passed == made, f"proven: {', '.join(passed) or 'nothing'}")
    weights, own = (manifest.get("rewards") or {}).get("weights") or {}, manifest.get("versions") or {}
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    seen["after documented"] = (bool(weights), f"recipe.yaml, manifest.json: {listed}")
    seen["after again"] = (bool(made and own), f"seed {run.recipe().seed}, trl {own.get('trl')}, {len(made)} passports")
    return seen
