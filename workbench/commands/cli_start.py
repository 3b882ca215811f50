"""The commands around the stages: demonstration, notebooks, lessons, this machine, and words."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.base.errors import RequestError, WorkbenchError
from workbench.base.workspace import shown
from workbench.commands.command import Result, command

_SAID_EVERY_S = 30.0


@command(
    "Start",
    aborted="what was executed stays under runs/; a run that had begun goes on with `workbench"
    " continue latest`",
)
def demo(name: str, policy: str, steps: int | None, **options: Any) -> Result:
    """Run the five notebooks in order, and report what training gained.

    They run in real kernels. The executed notebooks and a report (HTML) stay under runs/NAME. Needs
    no GPU and no network. `tiny` is a policy of 0.8 million parameters that learns to add and
    subtract, in 3 minutes. `smollm2` is a real instruct model of 135 million that learns to call
    reviews positive or negative in one word, in about ten minutes on two idle cores; it comes with
    the extra of that name.

    Example: `workbench demo --policy smollm2`.

    Options:
        --policy TEXT = tiny: tiny or smollm2.
        --name TEXT = demo: Name of the run; its folder is runs/NAME (NAME-2, ... if it exists).
        --seed N = 0: The same seed gives the same result on the same machine.
        --steps N [1..]: Train this many steps instead of notebook 03's own number.
    """
    from workbench.base.notebook import NOTEBOOKS
    from workbench.commands.demo import result_table, run_notebooks, settings_of
    from workbench.run.directory import check_name
    from workbench.views.terminal import Bar

    check_name(name)
    settings_of(policy)  # raises what is wrong with it before a bar is drawn
    parameters = {"03_train": {"max_steps": steps}} if steps else None
    said_at = time.monotonic()
    with Bar("cells") as bar:
        rows = {stem: bar.add_task(stem, total=None, start=False, numbers="") for stem in NOTEBOOKS}

        def say(line: str) -> None:
            if not bar.console.is_terminal:
                print(line, file=sys.stderr, flush=True)

        def on_cell(stem: str, done: int, total: int) -> None:
            bar.start_task(rows[stem])
            bar.update(rows[stem], completed=done, total=total, numbers="")
            if done == total:
                say(f"{stem}: {total} cells")

        def on_step(done: int) -> None:
            nonlocal said_at
            if bar.tasks[rows["03_train"]].finished:  # it is called until the last notebook ends
                return
            trained = f"{done} step{'s' * (done != 1)} trained"
            bar.update(rows["03_train"], numbers=trained)
            if time.monotonic() > said_at + _SAID_EVERY_S:
                said_at = time.monotonic()
                say(f"03_train: {trained}; `workbench watch` shows them")

        options |= {"parameters": parameters, "on_cell": on_cell, "on_step": on_step}
        result = run_notebooks(name, policy=policy, **options)
    return Result(result, result_table(result))


@command("Start", streams=True)
def lab(port: int, browser: bool) -> None:
    """Open JupyterLab on the five notebooks.

    Start with 01_dataset and continue in order; each notebook says what it needs and what it
    leaves. Stop with Ctrl-C.

    Options:
        --port N = 8888 [1..65535]: Port of the JupyterLab server.
        --browser / --no-browser = true: Open a browser.
    """
    from workbench.base.notebook import notebooks_to_edit

    _open_lab(notebooks_to_edit() / "01_dataset.ipynb", port, browser)


@command("Start", aborted="the copy holds the cells that were executed")
def notebook(which: str, said: list[str] | None, out: Path | None) -> Result:
    """Run one notebook from a terminal, with your parameters.

    It runs in a fresh kernel. A parameter is assigned in the notebook's cell of parameters (or the
    folded one below it), or is an entry of a dict there, as max_steps is of `grpo`; an unknown one
    is an error that names the nearest right one. Values are Python literals (5, 1e-4, True, None,
    [1, 2]), and text where text stands now. The notebook itself is not changed: the executed copy,
    with all its outputs, is written even if a cell fails. Exits with 2 if one does.

    Examples: `workbench notebook 03 --set max_steps=5 --set run_name=short`,
    `workbench notebook inspect --set run_name=short --out short.ipynb`.

    Args:
        WHICH: One of the five, such as 03, train or 03_train; or the path of an .ipynb file.

    Options:
        --set NAME=VALUE... as said: One of its parameters; may be repeated.
        --out PATH: Write the executed copy here, instead of a new file in runs/notebooks/.
    """
    from workbench.base.notebook import find_notebook, run_notebook
    from workbench.views.terminal import progress

    with progress("cells", find_notebook(which).stem) as on_cell:
        executed = run_notebook(which, said or [], out, on_cell)
    return Result(
        executed, f"{executed['minutes']:.1f} minutes; executed copy: {shown(executed['out'])}"
    )


@command("Start")
def lesson(
    name: str | None,
    again: bool,
    solved: bool,
    grade: Path | None,
    csv: Path | None,
    **lab: Any,
) -> Result:
    """Open a lesson; without a name, list them with your progress.

    A lesson is a notebook, copied into lessons/ of the workspace, where your own copy is never
    overwritten. Needs no GPU and no network. Your progress is kept in lessons/progress.jsonl.

    With --grade, for teachers: who passed what, by the pass records in the learners' notebooks and
    in their lessons/progress.jsonl. Nothing of theirs is run. Exit code 1: something needs a look.

    Examples: `workbench lesson`, `workbench lesson grpo_by_hand`, `workbench lesson broken_runs
    --solved`, `workbench lesson --grade handed_in --csv grades.csv`.

    Args:
        [NAME]: A lesson's name or number; none: list them, with your progress.

    Options:
        --again: Open a fresh copy; yours stays.
        --solved: Write a copy with every blank filled in, for a teacher, and open nothing.
        --grade FOLDER: Grade what was handed in: a folder or a notebook of each learner.
        --csv FILE: With --grade, write a line for each learner and blank; no file is
            overwritten.
        --port N = 8888 [1..65535]: Port of the JupyterLab server.
        --browser / --no-browser = true: Open a browser.
    """
    from workbench.teaching import grading, lessons

    if grade is not None:
        grades = grading.grade(grade, name)
        if csv is not None:
            print(f"written: {shown(grading.write_grades(grades, csv))}", file=sys.stderr)
        return Result(grades, grades, int(grades.needs_a_look))
    if csv is not None:
        raise RequestError(
            f"--csv {csv} without --grade",
            rule="the CSV is of grades",
            remedy="add --grade FOLDER",
        )
    if name is None:
        listed = lessons.lessons()
        return Result(listed, lessons.table(listed))
    copy = lessons.copy_of(name, again, solved)
    if not solved:
        _open_lab(copy, **lab)
    return Result({"copy": str(copy)}, f"solved copy: {shown(copy)}")


@command("Set-up and words")
def doctor() -> Result:
    """Report versions, the device, and what works on this machine.

    4-bit, bf16, vLLM, widgets, and a remedy for what does not work. Exits with 1 if training does
    not work here, as in an install without the extra train.
    """
    from workbench.commands.doctor import examine_machine, tables

    report = examine_machine()
    broken = any(each["needed"] and not each["works"] for each in report["findings"])
    return Result(report, tables(report), int(broken))


@command("Set-up and words")
def explain(term: str | None, trl: str | None) -> Result:
    """Explain a metric, a setting or a word; without one, list them.

    Meaning, unit, healthy range, and what changed in which version.

    Examples: `workbench explain clip_ratio`, `workbench explain reward_std --trl 0.26`.

    Args:
        [TERM]: A metric, a setting or a word, such as clip_ratio or 'dead group'.

    Options:
        --trl TEXT: Explain it for this version of TRL, such as an older guide's.
    """
    from workbench.teaching import glossary

    if term is not None:
        entry = wb.explain(term, trl)
        return Result(entry, entry)
    terms = glossary.terms()
    return Result(terms, "\n".join(f"{kind}: {', '.join(names)}" for kind, names in terms.items()))


def _open_lab(notebook: Path, port: int, browser: bool) -> None:
    from workbench.base.extras import INSTALL_LAB

    if importlib.util.find_spec("jupyterlab") is None:
        raise WorkbenchError(
            "JupyterLab is not installed",
            rule="`workbench lab` and `lesson` start the JupyterLab of this environment",
            remedy=f"{INSTALL_LAB}; or open {shown(notebook)} in the Jupyter that you have, with"
            " this environment's kernel",
        )
    start = [sys.executable, "-m", "jupyterlab", str(notebook), f"--port={port}"]
    start.append(f"--ServerApp.root_dir={notebook.parents[1]}")
    if not browser:
        start.append("--no-browser")
    if os.geteuid() == 0:
        start.append("--allow-root")
    os.execv(start[0], start)
