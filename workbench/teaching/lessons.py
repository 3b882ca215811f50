"""Lessons: notebooks that are copied into the workspace before they are opened, and which of their exercises are passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.demo import NOTEBOOKS, free, notebooks_folder
from workbench.errors import RunError, nearest
from workbench.run.directory import now
from workbench.teaching.cells import blanks, filled
from workbench.workspace import append_line, read_lines, replace_file, resolve

FOLDER = "lessons"  # in the workspace: the learner's own copies, and what is passed
PROGRESS = "progress.jsonl"
SOLVED = "-solved"
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
    """Note that an exercise is passed, once: a blank's last line, after its asserts. It prints how many are."""
    if exercise not in passed().get(lesson, {}):
        file = resolve(FOLDER) / PROGRESS
        file.parent.mkdir(parents=True, exist_ok=True)
        append_line(file, {"time": now(), "lesson": lesson, "exercise": exercise})
    print(f"passed: {exercise} ({len(passed()[lesson])} in {lesson})")


def passed() -> dict[str, dict[str, str]]:
    """Lesson -> exercise -> when it was first passed, in UTC."""
    found: dict[str, dict[str, str]] = {}
    for line in read_lines(resolve(FOLDER) / PROGRESS):
        found.setdefault(line.get("lesson", ""), {}).setdefault(line.get("exercise", ""), line.get("time", ""))
    return found


def lessons() -> list[dict[str, Any]]:
    """Each lesson that is there: `lesson`, `title`, `minutes` to run, `exercises` to fill in, how many are `passed`, `last` when."""
    found, own = [], passed()
    for name, minutes in MINUTES.items():
        try:
            notebook = _read(find_lesson(name))
        except RunError:
            continue
        title = notebook["cells"][0]["source"].lstrip().partition("\n")[0].lstrip("# ")
        count, times = len(blanks(notebook)), own.get(name, {})
        found.append({"lesson": name, "title": title, "minutes": minutes, "exercises": count})
        found[-1] |= {"passed": len(times), "last": max(times.values(), default=None)}
    return found


def copy_of(name: str, again: bool = False, solved: bool = False) -> Path:
    """The learner's copy of a lesson: the one changed last, or, if there is none or `again`, a fresh one beside it.

    `solved`: a copy with every blank filled in, for a teacher.
    """
    import nbformat

    source, folder = find_lesson(name), resolve(FOLDER)
    stem = source.stem + SOLVED * solved
    copies = [folder / f"{stem}.ipynb", *folder.glob(f"{stem}-[0-9]*.ipynb")]
    if not again and (there := [file for file in copies if file.is_file()]):
        return max(there, key=lambda file: file.stat().st_mtime)
    target = free(copies[0])
    with replace_file(target) as beside:
        nbformat.write(filled(_read(source)) if solved else _read(source), beside)
    return target


def _read(file: Path) -> Any:
    import nbformat

    return nbformat.read(file, as_version=4)
