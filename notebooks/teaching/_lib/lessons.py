"""Lessons: notebooks that are copied into the workspace before they are opened, and which of their
exercises are passed: a pass record of each says by which code, when, and with which versions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.base.errors import RunError, nearest
from workbench.base.kinds import Fields
from workbench.base.notebook import NOTEBOOKS, free, notebooks_folder
from workbench.base.workspace import append_line, digest, made, read_lines, replace_file, resolve
from workbench.run.directory import now
from workbench.run.machine import versions
from workbench.teaching._lib.cells import DONE, blanks, cell_hash, filled
from workbench.views.tables import Table

FOLDER = "lessons"  # in the workspace: the learner's own copies, and progress.jsonl
# Minutes that a notebook takes to run, on two CPU cores with the embedded policy.
MINUTES = dict(zip(NOTEBOOKS, (0.3, 0.1, 1.2, 0.6, 0.8), strict=True)) | {
    "grpo_by_hand": 0.6,
    "ppo_by_hand": 0.3,
    "broken_runs": 21.2,
    "two_rewards": 1.9,
    "biased_judge": 1.4,
    "ladder": 10.9,
    "play_it": 1.6,
}


def shipped() -> dict[str, Path]:
    """Lesson -> its notebook, of those that this installation has."""
    places = {
        name: notebooks_folder() / ("" if name in NOTEBOOKS else "teaching") / f"{name}.ipynb"
        for name in MINUTES
    }
    return {name: file for name, file in places.items() if file.is_file()}


def done(lesson: str, exercise: str) -> None:
    """Note that an exercise is passed: the last line of a blank, after its asserts.

    The pass record is a line of lessons/progress.jsonl, and in a notebook also goes with the cell's
    output, so that the notebook alone can be graded. The same code is noted once.
    """
    file = made(resolve(FOLDER)) / "progress.jsonl"
    cell = _running_cell()
    record = {
        "time": now(),
        "lesson": lesson,
        "exercise": exercise,
        "cell": None if cell is None else cell_hash(cell),
        "workbench": __version__,
    }
    record |= {key: own for key, own in versions().items() if key in ("python", "torch", "trl")}
    what = ("lesson", "exercise", "cell")
    for line in read_lines(file):
        if all(line.get(key) == record[key] for key in what) and is_sealed(line):
            record = line
            break
    else:
        append_line(file, record := record | {"checksum": digest(sorted(record.items()))})
    said = f"passed: {exercise} ({len(passed(lesson))} in {lesson})"
    if cell is None:
        print(said)
    else:
        sys.modules["IPython"].display.display(
            {"text/plain": said}, metadata={"workbench": record}, raw=True
        )


def is_sealed(record: Fields) -> bool:
    """Whether the checksum of a pass record fits it. It finds damage and a careless edit; whoever
    reads this can make one that fits.
    """
    own = {key: value for key, value in record.items() if key != "checksum"}
    return record.get("checksum") == digest(sorted(own.items()))


def handed_in(file: Path) -> Iterator[tuple[tuple[str, str], str | Fields]]:
    """What a learner's notebook or progress.jsonl holds: (lesson, exercise), and either the code of
    its cell or a pass record.
    """
    if file.suffix != ".ipynb":
        yield from (((own["lesson"], own["exercise"]), own) for own in read_lines(file))
        return
    for cell in read_notebook(file)["cells"]:
        if cell["cell_type"] == "code":
            yield from ((what, cell["source"]) for what in DONE.findall(cell["source"]))
            for output in cell["outputs"]:
                if own := output.get("metadata", {}).get("workbench"):
                    yield (own["lesson"], own["exercise"]), own


def _running_cell() -> str | None:
    # The code of the cell that calls; None outside a notebook.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell.history_manager.input_hist_raw[-1] if shell else None


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
        notebook = read_notebook(file)
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


def table(listed: list[dict[str, Any]]) -> Table:
    """What `lessons` returns, as `workbench lesson` prints it."""
    rows = []
    for each in listed:
        passed = f"{len(each['passed'])} of {each['exercises']}" if each["exercises"] else "-"
        minutes = "not measured" if each["minutes"] is None else each["minutes"]
        rows.append([each["lesson"], each["title"], minutes, passed, each["last"] or "-"])
    return Table(["lesson", "title", "minutes to run", "passed", "last"], rows)


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
            json.dumps(filled(read_notebook(source)), indent=1, ensure_ascii=False)
            if solved
            else source.read_text(encoding="utf-8")
        )
        beside.write_text(text, encoding="utf-8")
    return target


def read_notebook(file: Path) -> dict[str, Any]:
    """A notebook as JSON, each cell's source in one piece: without nbformat, whose import takes
    seconds.
    """
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook
