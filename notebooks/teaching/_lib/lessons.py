"""Lessons: notebooks that are copied into the workspace before they are opened, and which of their
exercises are passed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.demo import NOTEBOOKS, free, notebooks_folder
from workbench.errors import RunError, nearest
from workbench.run.directory import now
from workbench.teaching._lib.cells import blanks, filled
from workbench.workspace import append_line, made, read_lines, replace_file, resolve

FOLDER = "lessons"  # in the workspace: the learner's own copies, and progress.jsonl
# Minutes that a notebook takes to run, on two CPU cores with the embedded policy.
MINUTES = dict(zip(NOTEBOOKS, (0.3, 0.1, 1.2, 0.6, 0.8), strict=True)) | {
    "grpo_by_hand": 0.6,
    "broken_runs": 6.8,
    "two_rewards": 2.2,
    "biased_judge": 2.9,
    "ladder": 9.9,
}


def shipped() -> dict[str, Path]:
    """Lesson -> its notebook, of those that this installation has."""
    places = {
        name: notebooks_folder() / ("" if name in NOTEBOOKS else "teaching") / f"{name}.ipynb"
        for name in MINUTES
    }
    return {name: file for name, file in places.items() if file.is_file()}


def done(lesson: str, exercise: str) -> None:
    """Note that an exercise is passed, once: the last line of a blank, after its asserts."""
    if exercise not in passed(lesson):
        append_line(
            made(resolve(FOLDER)) / "progress.jsonl",
            {"time": now(), "lesson": lesson, "exercise": exercise},
        )
    print(f"passed: {exercise} ({len(passed(lesson))} in {lesson})")


def passed(lesson: str) -> dict[str, str]:
    """Exercise -> when it was first passed, in UTC."""
    lines = [
        line
        for line in read_lines(resolve(FOLDER) / "progress.jsonl")
        if line.get("lesson") == lesson
    ]
    return {str(line.get("exercise")): str(line.get("time")) for line in reversed(lines)}


def lessons() -> list[dict[str, Any]]:
    """Of each: `lesson`, `title`, `minutes` to run, how many `exercises`, those `passed`, and when
    the `last` was.
    """
    rows = []
    for name, file in shipped().items():
        notebook = _read(file)
        times = passed(name)
        rows.append(
            {
                "lesson": name,
                "title": notebook["cells"][0]["source"].lstrip().partition("\n")[0].lstrip("# "),
                "minutes": MINUTES[name],
                "exercises": len(blanks(notebook)),
                "passed": list(times),
                "last": max(times.values(), default=None),
            }
        )
    return rows


def copy_of(name: str, again: bool = False, solved: bool = False) -> Path:
    """The learner's copy of a lesson: the one changed last; or, if there is none or `again`, a
    fresh one beside it.

    `name`: as `workbench lesson` lists it, or the number or word of one of the five (`3`, `train`).
    `solved`: a copy with every blank filled in, for a teacher. No copy is written over. RunError:
    there is no such lesson.
    """
    known = shipped()
    folder = resolve(FOLDER)
    short = {word: stem for stem in NOTEBOOKS for word in (stem[:2], stem[1:2], stem[3:])}
    if (lesson := short.get(name, name)) not in known:
        remedy = nearest(name, known, "`workbench lesson` lists them")
        raise RunError(
            f"lesson {name!r}: there is none",
            rule=f"a lesson is one of {', '.join(known)}",
            remedy=remedy,
        )
    stem = f"{lesson}-solved" if solved else lesson
    source = known[lesson]
    there = [*folder.glob(f"{stem}.ipynb"), *folder.glob(f"{stem}-[0-9]*.ipynb")]
    if there and not again:
        return max(there, key=lambda file: file.stat().st_mtime)
    with replace_file(target := free(folder / f"{stem}.ipynb")) as beside:
        text = (
            json.dumps(filled(_read(source)), indent=1, ensure_ascii=False)
            if solved
            else source.read_text(encoding="utf-8")
        )
        beside.write_text(text, encoding="utf-8")
    return target


def _read(file: Path) -> dict[str, Any]:
    # Without nbformat, whose import takes seconds.
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook
