"""Lessons: notebooks that are copied into the workspace before they are opened, and which of their exercises are passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.demo import NOTEBOOKS, free, notebooks_folder
from workbench.errors import RunError, nearest
from workbench.run.directory import now
from workbench.teaching.cells import blanks, filled
from workbench.workspace import append_line, read_lines, replace_file, resolve

FOLDER = "lessons"  # in the workspace: the learner's own copies, and progress.jsonl
# Minutes that a notebook takes to run, on two CPU cores with the embedded policy; None: not measured yet.
MINUTES = dict(zip(NOTEBOOKS, (0.5, 0.1, 1.9, 0.8, 0.4), strict=True)) | {"grpo_by_hand": None, "broken_runs": None}


def find_lesson(name: str) -> Path:
    """A lesson's notebook as it ships, by name or number (`3`, `train`, `grpo_by_hand`); RunError if there is none."""
    for stem in MINUTES:
        file = notebooks_folder() / ("" if stem in NOTEBOOKS else "teaching") / f"{stem}.ipynb"
        if file.is_file() and name in (stem, *((stem[:2], stem[1:2], stem[3:]) if stem in NOTEBOOKS else ())):
            return file
    remedy = nearest(name, MINUTES, "`workbench lesson` lists them")
    raise RunError(f"lesson {name!r}: there is none", rule=f"a lesson is one of {', '.join(MINUTES)}", remedy=remedy)


def done(lesson: str, exercise: str) -> None:
    """Note that an exercise is passed, once: the last line of a blank, after its asserts."""
    if exercise not in passed(lesson):
        file = resolve(FOLDER) / "progress.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        append_line(file, {"time": now(), "lesson": lesson, "exercise": exercise})
    print(f"passed: {exercise} ({len(passed(lesson))} in {lesson})")


def passed(lesson: str) -> dict[str, str]:
    """Exercise -> when it was first passed, in UTC."""
    lines = [line for line in read_lines(resolve(FOLDER) / "progress.jsonl") if line.get("lesson") == lesson]
    return {str(line.get("exercise")): str(line.get("time")) for line in reversed(lines)}


def lessons() -> list[dict[str, Any]]:
    """Each that is there: `lesson`, `title`, `minutes` to run, how many `exercises`, those `passed`, and when the `last` was."""
    found = []
    for name in MINUTES:
        if (notebook := _read(name)) is not None:
            title, times = notebook["cells"][0]["source"].lstrip().partition("\n")[0].lstrip("# "), passed(name)
            found.append({"lesson": name, "title": title, "minutes": MINUTES[name], "exercises": len(blanks(notebook))})
            found[-1] |= {"passed": list(times), "last": max(times.values(), default=None)}
    return found


def copy_of(name: str, again: bool = False, solved: bool = False) -> Path:
    """The learner's copy of a lesson: the one changed last; or, if there is none or `again`, a fresh one beside it.

    `solved`: a copy with every blank filled in, for a teacher. No copy is written over. RunError: no such lesson.
    """
    import nbformat

    source, folder = find_lesson(name), resolve(FOLDER)
    stem = source.stem + "-solved" * solved
    there = [*folder.glob(f"{stem}.ipynb"), *folder.glob(f"{stem}-[0-9]*.ipynb")]
    if there and not again:
        return max(there, key=lambda file: file.stat().st_mtime)
    notebook, target = nbformat.read(source, as_version=4), free(folder / f"{stem}.ipynb")
    with replace_file(target) as beside:
        nbformat.write(filled(notebook) if solved else notebook, beside)
    return target


def _read(name: str) -> Any:
    import nbformat

    try:
        return nbformat.read(find_lesson(name), as_version=4)
    except RunError:  # of a lesson that this installation lacks
        return None
