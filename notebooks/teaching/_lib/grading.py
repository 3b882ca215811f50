"""Grading: what the learners of a class have passed, from the notebooks that they hand in and the
pass records in and beside them. None of their code is run.
"""

from __future__ import annotations

import csv
import itertools
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench import __version__
from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.notebook import free
from workbench.base.printable import printable
from workbench.base.workspace import find, looked_in, replace_file, shown
from workbench.teaching._lib import cells, lessons
from workbench.views.tables import Table

# What is said of a blank, the best first: the first alone earns its points.
STATUS = {
    "passed": "the record fits the cell, which has the lesson's checks",
    "another version": "passed with another version of the workbench, whose checks differ",
    "checks changed": "the record fits the cell, but one of the lesson's checks is not in it",
    "changed since": "passed by other code than the cell now has",
    "altered record": "its checksum does not fit: damaged, or edited by hand",
    "no record": "filled in; never passed, or its record was not handed in",
    "empty": "as the lesson has it",
    "no cell": "in no notebook that was handed in",
}
_CLEAR = ("passed", "empty", "no cell")  # no second look is needed
CANNOT_KNOW = (
    "Nothing was run. A record can be made by hand by whoever reads how it is made, and the same"
    " code in two hands may be chance, help or copying: talk, or run the notebook yourself."
)
_NAMED = 12  # lines of a list that a terminal gets; --json has all


class GradedBlank(NamedTuple):
    """A blank of a learner. `passed`: when, by the record; `as_solution`: the cell is the folded
    solution; `same_as`: learners with the same code, which is not that.
    """

    learner: str
    lesson: str
    exercise: str
    points: float
    of: float
    status: str
    passed: str | None
    as_solution: bool
    same_as: list[str]
    code: str | None  # its hash, if the cell is not as it shipped
    record: str | None  # the checksum of its record


class Grades(NamedTuple):
    """What `grade` found. `learners`: the points of each, by lesson; `identical`: one entry for two
    learners and a lesson; `notes`: what could not be read or graded.
    """

    folder: str
    lessons: dict[str, float]  # lesson -> its points, of those that somebody has handed in
    learners: dict[str, dict[str, float]]
    blanks: list[GradedBlank]
    identical: list[Fields]
    notes: list[str]
    needs_a_look: bool
    cannot_know: str = CANNOT_KNOW

    def points_table(self) -> tuple[list[str], list[list[object]]]:
        """Header and rows of a table, one row a learner: the points in each lesson and in all, and
        how many cells are the folded solution.
        """
        rows: list[list[object]] = []
        for learner, points in self.learners.items():
            earned = [
                f"{points[name]:g} of {most:g}" if name in points else "-"
                for name, most in self.lessons.items()
            ]
            folded = sum(own.as_solution for own in self.blanks if own.learner == learner)
            of = sum(self.lessons[name] for name in points)
            rows.append([learner, *earned, f"{sum(points.values()):g} of {of:g}", folded])
        header = [f"{name}, points" for name in self.lessons]
        return ["learner", *header, "in all", "cells like the folded solution"], rows

    def remarks(self) -> str:
        """What to look at, what is the same in two hands, and what a grade cannot know."""
        looks = [
            f"{own.learner}, {own.lesson}, {own.exercise}: {own.status} ({STATUS[own.status]})"
            for own in self.blanks
            if own.status not in _CLEAR
        ]
        same = [
            "{}: {} and {}; blanks alike: {}, with the very same record: {}".format(*own.values())
            for own in self.identical
        ]
        parts = [
            _listed("To look at:", [*self.notes, *looks]),
            _listed("The same code in two hands, which is not the folded solution:", same),
            CANNOT_KNOW,
        ]
        return "\n\n".join(filter(None, parts))

    def __str__(self) -> str:
        return f"{Table(*self.points_table())}\n\n{self.remarks()}"


Work = dict[tuple[str, str], tuple[list, list]]  # of each exercise: code of its cells, pass records


def grade(folder: str | Path, lesson: str | None = None) -> Grades:
    """Grade a folder of learners: each folder in it is one, and so is each notebook lying loose in
    it; a folder with a progress.jsonl is one learner's.

    `lesson`: of this one alone. RunError: no such folder or lesson, or no notebook and no record.
    """
    known = _graded_lessons(lesson)
    learners = _learners(find(folder))
    if not any(learners.values()):
        raise RunError(
            f"--grade {folder}: no notebook and no progress.jsonl ({looked_in()})",
            rule="a folder to grade holds a folder or a notebook of each learner",
            remedy="unpack there what was handed in",
        )
    notes: list[str] = []
    entries: list[GradedBlank] = []
    points: dict[str, dict[str, float]] = {}
    for learner, files in learners.items():
        work = _work_of(files, notes)
        points[learner] = {name: 0 for name in known if any(name == own for own, _ in work)}
        if not points[learner]:
            notes.append(f"{learner}: nothing of a lesson with blanks was handed in")
        for name, exercise in work:
            if name in known and exercise not in known[name]:
                notes.append(f"{learner}, {name}, {exercise}: not in this version's lesson")
        for name in points[learner]:
            for exercise, blank in known[name].items():
                own = _graded((learner, name, exercise), blank, work)
                entries.append(own)
                points[learner][name] += own.points
    taken = {
        name: sum(blank.points for blank in own.values())
        for name, own in known.items()
        if any(name in each for each in points.values())
    }
    look = bool(notes) or any(own.status not in _CLEAR for own in entries)
    return Grades(str(folder), taken, points, entries, _identical(entries), notes, look)


def write_grades(grades: Grades, file: Path) -> Path:
    """Write a CSV, a line a learner and blank; returns where: an existing file is kept, and the new
    one lies beside it.
    """
    target = free(Path.cwd() / file)
    with replace_file(target) as beside, beside.open("w", newline="", encoding="utf-8") as lines:
        table = csv.writer(lines)
        table.writerow(GradedBlank._fields)
        table.writerows(map(_plain, own) for own in grades.blanks)
    return target


def _graded_lessons(only: str | None) -> dict[str, dict[str, cells.LessonBlank]]:
    # Lesson -> exercise -> its blank.
    every = {
        name: cells.exercises(lessons.read_notebook(file))
        for name, file in lessons.shipped().items()
    }
    known = {name: own for name, own in every.items() if own and only in (None, name)}
    if not known:
        raise RunError(
            f"--grade of lesson {only!r}: it has no blanks, or there is none",
            rule=f"lessons with blanks: {', '.join(name for name, own in every.items() if own)}",
            remedy="leave the name out to grade them all",
        )
    return known


def _learners(folder: Path) -> dict[str, list[Path]]:
    # Learner -> the notebooks and records that were handed in; an unpacked archive also has hidden
    # files.
    if not folder.is_dir():
        return {}
    one = (folder / "progress.jsonl").is_file()
    files = {}
    for each in [folder.resolve()] if one else sorted(folder.glob("[!.]*")):
        if each.is_dir():
            inside = sorted([*each.rglob("[!.]*.ipynb"), *each.rglob("progress.jsonl")])
            files[each.name] = [own for own in inside if ".ipynb_checkpoints" not in own.parts]
        elif each.suffix == ".ipynb":
            files[each.name] = [each]
    return files


def _work_of(files: Iterable[Path], notes: list[str]) -> Work:
    work: Work = defaultdict(lambda: ([], []))
    for file in files:
        with warnings.catch_warnings(record=True) as torn:
            warnings.simplefilter("always")
            try:
                for what, own in lessons.handed_in(file):
                    work[what][isinstance(own, dict)].append(own)
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                RecursionError,
            ) as why:
                notes.append(
                    f"{shown(file)}: not read to its end: {type(why).__name__}: {why}"[:200]
                )
        notes += [str(each.message) for each in torn]
    return work


def _graded(what: tuple[str, str, str], blank: cells.LessonBlank, work: Work) -> GradedBlank:
    # The best of the cells, where the learner handed in several copies.
    sources, records = work.get(what[1:], ([], []))
    judged = [_judged(blank, source, records) for source in sources] or [("no cell", {}, None)]
    status, record, code = min(judged, key=lambda own: [*STATUS].index(own[0]))
    points = blank.points if status == "passed" else 0
    said = (record.get("time"), code == blank.solution, [], code, record.get("checksum"))
    return GradedBlank(*what, points, blank.points, status, *said)


def _judged(
    blank: cells.LessonBlank, source: str, records: Sequence[Fields]
) -> tuple[str, Fields, str | None]:
    cell = cells.cell_hash(source)
    code = None if cell == blank.empty else cells.code_hash(source)
    sealed = [own for own in records if own.get("cell") and lessons.is_sealed(own)]
    for record in sealed:
        if code and record["cell"] == cell:
            if not blank.checks - cells.checks_of(source):
                return "passed", record, code
            same = record.get("workbench") == __version__
            return "checks changed" if same else "another version", record, code
    if sealed:
        return "changed since", sealed[-1], code
    if code is None:
        return "empty", {}, None
    return "altered record" if records else "no record", {}, code


def _identical(entries: Sequence[GradedBlank]) -> list[Fields]:
    # Two learners with the same code, which is neither the blank's nor its solution's.
    holders = defaultdict(list)
    for own in entries:
        if own.code and not own.as_solution:
            holders[own.lesson, own.exercise, own.code].append(own)
    pairs = defaultdict(list)
    for group in holders.values():
        for one, other in itertools.combinations(group, 2):
            one.same_as.append(other.learner)
            other.same_as.append(one.learner)
            same = one.record is not None and one.record == other.record
            pairs[one.lesson, one.learner, other.learner].append(same)
    rows = [
        {"lesson": lesson, "one": one, "other": other, "blanks": len(same), "records": sum(same)}
        for (lesson, one, other), same in pairs.items()
    ]
    return sorted(rows, key=lambda own: (own["records"], own["blanks"]), reverse=True)


def _listed(title: str, lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _NAMED} more: --json has them"] if len(lines) > _NAMED else []
    rows = [f"  {printable(line)}" for line in [*lines[:_NAMED], *more]]
    return "\n".join([title, *rows]) if lines else ""


def _plain(value: object) -> object:
    text = " ".join(map(str, value)) if isinstance(value, list) else value
    # A spreadsheet takes such a text for a formula.
    return f"'{text}" if isinstance(text, str) and text.startswith(tuple("=+-@")) else text
