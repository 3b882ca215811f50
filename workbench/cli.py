"""The same stages without a notebook. A command and a notebook cell call the same functions.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workbench as wb
import workbench.cli_after
from workbench.command import (
    AsJson,
    Browser,
    Port,
    Result,
    Set,
    Steps,
    TaskFile,
    TemplateKwargs,
    Weight,
    Words,
    command,
    json_text,
    main,
    open_named,
    weights_of,
)  # fmt: skip
from workbench.command import (
    app as app,
)
from workbench.errors import PolicyError, RequestError, WorkbenchError, nearest
from workbench.extras import INSTALL_LAB
from workbench.workspace import replace_file, shown

_SAID_EVERY_S = 30.0


@command(
    least={"steps": 1},
    aborted="what was executed stays under runs/; a run that had begun goes on with `workbench"
    " continue latest`",
)
def demo(
    *, policy: str = "tiny", name: str = "demo", seed: int = 0, steps: int | None = None
) -> Result:
    """Run the five notebooks in order, and report what training gained.

    They run in real kernels. The executed notebooks and a report (HTML) stay under runs/NAME. Needs
    no GPU and no network. `tiny` is a policy of 0.8 million parameters that learns to add and
    subtract, in 3 minutes. `smollm2` is a real instruct model of 135 million that learns to call
    reviews positive or negative in one word, in about ten minutes on two idle cores; it comes with
    the extra of that name.

    Example: `workbench demo --policy smollm2`.

    Args:
        policy: tiny or smollm2.
        name: Name of the run; its folder is runs/NAME (NAME-2, ... if it exists).
        seed: The same seed gives the same result on the same machine.
        steps: Train this many steps instead of notebook 03's own number.
    """
    from workbench.demo import NOTEBOOKS, result_table, run_notebooks, settings_of
    from workbench.run.directory import check_name
    from workbench.views.terminal import Bar

    check_name(name)
    settings_of(policy)  # raises what is wrong with it before a bar is drawn
    with Bar("cells") as bar:
        tasks = {
            stem: bar.add_task(stem, total=None, start=False, numbers="") for stem in NOTEBOOKS
        }

        def on_cell(stem: str, done: int, total: int) -> None:
            bar.start_task(tasks[stem])
            bar.update(tasks[stem], completed=done, total=total, numbers="")
            if not bar.console.is_terminal and done == total:
                print(f"{stem}: {total} cells", file=sys.stderr, flush=True)

        said_at = time.monotonic()

        def on_step(done: int) -> None:
            nonlocal said_at
            if bar.tasks[tasks["03_train"]].finished:  # it is called until the last notebook ends
                return
            trained = f"{done} step{'s' * (done != 1)} trained"
            bar.update(tasks["03_train"], numbers=trained)
            if not bar.console.is_terminal and time.monotonic() > said_at + _SAID_EVERY_S:
                said_at = time.monotonic()
                line = f"03_train: {trained}; `workbench watch` shows them"
                print(line, file=sys.stderr, flush=True)

        parameters = {"03_train": {"max_steps": steps}} if steps else None
        result = run_notebooks(
            name,
            policy=policy,
            seed=seed,
            parameters=parameters,
            on_cell=on_cell,
            on_step=on_step,
        )
    return Result(result, result_table(result))


@command(aborted="the copy holds the cells that were executed")
def notebook(
    which: str,
    *,
    set_: Words = None,
    out: Path | None = None,
) -> Result:
    """Run one notebook from a terminal, with your parameters.

    It runs in a fresh kernel. A parameter is assigned in the notebook's cell of parameters (or the
    folded one below it), or is an entry of a dict there, as max_steps is of `grpo`; an unknown one
    is an error that names the nearest right one. Values are Python literals (5, 1e-4, True, None,
    [1, 2]), and text where text stands now. The notebook itself is not changed: the executed copy,
    with all its outputs, is written even if a cell fails. Exits with 2 if one does.

    Examples: `workbench notebook 03 --set max_steps=5 --set run_name=short`,
    `workbench notebook inspect --set run_name=short --out short.ipynb`.

    Args:
        which: One of the five, such as 03, train or 03_train; or the path of an .ipynb file.
        set_ (--set NAME=VALUE): One of its parameters; may be repeated.
        out: Write the executed copy here, instead of a new file in runs/notebooks/.
    """
    from workbench.demo import find_notebook, run_notebook
    from workbench.views.terminal import progress

    with progress("cells", find_notebook(which).stem) as on_cell:
        executed = run_notebook(which, set_ or [], out, on_cell)
    return Result(
        executed, f"{executed['minutes']:.1f} minutes; executed copy: {shown(executed['out'])}"
    )


@command(least={"vram": 1})
def plan(
    source: str,
    *,
    vram: float | None = None,
    out: Path | None = None,
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """Show what a run would do, and whether it fits the GPU.

    Settings requested and effective, the batch in words, GPU memory. The policy is not loaded. Old
    names are translated, each with a line; unknown ones, contradictions and batches without whole
    groups are errors (exit code 2); exits with 1 if it does not fit. "Effective" means on this
    machine; without a GPU, memory is estimated as on one. A preset is a recipe to start from; an
    unknown name lists them.

    Examples: `workbench plan t4 --vram 16`, `workbench plan train.py --out recipe.yaml`,
    `workbench plan recipe.yaml --set learning_rate=1e-5`, `workbench plan recipe.yaml --set
    algorithm=gspo`.

    Args:
        source: A recipe (.yaml), a preset, a script (.py; read, never run), or - for standard
            input.
        vram: GPU memory in GB to plan for, instead of this machine's card.
        out: Write the recipe here (YAML), under today's names.
    """
    from workbench.training.kept import answering

    recipe = sys.stdin.read() + "\n" if source == "-" else source
    with answering():
        planned = wb.plan(recipe, vram_gb=vram, said=said or [], steps=steps)
        if out:
            planned.recipe.save(out, portable=True)
        if planned.memory is None or planned.memory.fits is not False:
            return Result(planned.found(), planned)
        from workbench.memory import hints

        inputs = planned.memory.inputs
        remedies = [
            "to make it fit, one or more of these, cheapest first:",
            *hints(inputs.recipe, inputs.settings),
        ]
    return Result(planned.found(), f"{planned}\n\n" + "\n  - ".join(remedies), 1)


@command()
def train(
    recipe: str,
    *,
    run_name: str | None = None,
    runs: str = "runs",
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """Train as a recipe says.

    Ctrl-C stops after the step and saves; a second one aborts. While it trains, `workbench watch`
    shows it and `workbench control` steers it, from any other terminal. A run that was stopped or
    killed resumes with `workbench continue`.

    Examples: `workbench train recipe.yaml --steps 20 --set learning_rate=1e-5 --set
    policy.load_in_4bit=false`, `workbench train recipe.yaml --set algorithm=dr_grpo` (or grpo,
    dapo, gspo, gdpo, cispo: the settings of that paper).

    Args:
        recipe: Recipe file (YAML) or a preset's name; workbench/tiny/recipe.yaml is one to
            start from.
        run_name: Name of the run, instead of the recipe's.
        runs: Folder for the run's folder.
    """
    from workbench.training.presets import find_recipe, of_recipe
    from workbench.training.settings import overridden
    from workbench.views.terminal import TerminalProgress

    file = find_recipe(recipe)
    with of_recipe(shown(file)):
        edited = overridden(wb.Recipe.load(file), said or [], steps)
        edited.run_name = run_name or edited.run_name
        terminal = TerminalProgress()
        return _trained(lambda: wb.train(edited, watchers=[terminal], runs=runs), terminal)


@command("continue", least={"steps": 1})
def continue_(
    run: str = "latest",
    *,
    steps: int | None = None,
    hold_rate: bool = False,
    checkpoint: str | None = None,
    accept_changes: bool = False,
    take_over: bool = False,
) -> Result:
    """Resume a run that was stopped or killed, from its checkpoint.

    It resumes in its own folder, from its latest checkpoint, after a failure as well. Optimiser,
    schedule, random states and the order of the prompts are those of the checkpoint; on a CPU the
    numbers are those of a run that was never stopped.

    Args:
        run: A run by name or path; latest: the last that is not training.
        steps: Train this many steps more (do not repeat this after a kill). The learning rate's
            schedule then runs over all of them.
        hold_rate: With --steps, keep the last step's learning rate instead.
        checkpoint (--from NAME): Resume from this one, such as checkpoint-20; later ones are
            deleted.
        accept_changes: Resume although recipe, rows or rewards were changed; recorded.
        take_over: The run began on another machine, now gone (a lost Colab runtime).
    """
    from workbench.views.terminal import TerminalProgress

    opened = open_named(run, "begun" if take_over else "resting")
    terminal = TerminalProgress()
    training = functools.partial(
        wb.continue_run,
        opened,
        watchers=[terminal],
        steps=steps,
        hold_rate=hold_rate,
        checkpoint=checkpoint,
        accept_changes=accept_changes,
        take_over=take_over,
    )
    return _trained(training, terminal)


def _trained(training: Callable[[], Any], terminal: Any) -> Result:

    try:
        run = training()
    except BaseException:
        print(terminal.ended, end="\n" if terminal.ended else "", file=sys.stderr)
        raise
    result = run.result()
    data = {"run": str(run.path), "adapter": str(run.adapter), "ended": terminal.ended, **result}
    text = (
        f"{result['minutes']:.1f} minutes; adapter in {shown(run.adapter)}; next: `workbench eval"
        f" {run.name}`, or notebook 04"
    )
    return Result(data, "\n".join(filter(None, [terminal.ended, text])))


@command(least={"every": 0.1}, streams=True)
def watch(
    run: str = "latest",
    *,
    once: bool = False,
    png: Path | None = None,
    every: float = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow a run that trains in another process.

    Shows its numbers, its health and its changes, and ends when the run ends. Ctrl-C stops
    watching, not the run. --once, --png and --json show its current state and exit.

    Args:
        run: A run by name or path; latest: the one training, or begun last.
        once: Print its current state and exit.
        png: Write its current curves to this file.
        every: Seconds between two updates.
    """
    from workbench.views import watch as views
    from workbench.views.run_view import FollowedRun

    followed = FollowedRun(open_named(run, "training"))
    if png is not None:
        with replace_file(png) as beside:  # atomically
            beside.write_bytes(followed.picture(followed.line())[0])
        print(f"curves written to {png}", file=sys.stderr)
    if as_json:
        print(json_text(views.snapshot(followed)))
    elif once or (png is None and followed.over):
        print(views.snapshot_text(followed))
    elif png is None:
        views.follow(followed, every)


# a weight may be negative
@command(context_settings={"ignore_unknown_options": True}, least={"timeout": 0})
def control(
    run: str, action: str, details: Words = None, *, timeout: float = 60.0, force: bool = False
) -> Result:
    """Stop, pause or change a run while it trains.

    The request is applied at the end of the step in flight and recorded in events.jsonl. Exits with
    1 if the run refuses, with 3 if it has not answered in time.

    Examples: `workbench control latest stop`, `workbench control latest weight format_reward 0.5`.

    Args:
        run: A run by name or path; latest: the one training.
        action: stop, pause, resume, checkpoint, sample, weight, mute, unmute, reload, beta or
            learning_rate.
        details: weight: FUNCTION VALUE; mute, unmute: FUNCTION; beta, learning_rate: VALUE.
        timeout: Seconds to wait for the trainer's answer; 0: do not wait.
        force: Also take a learning rate or beta over 100 times the effective one.
    """
    from workbench.views import watch

    for each in details or []:
        if each.startswith("--"):  # a weight may be negative, so typer lets it through
            raise RequestError(
                f"no option {each}",
                rule="control takes --timeout, --force and --json",
                remedy=nearest(each, ("--timeout", "--force", "--json"), "leave it out"),
            )
    answer = watch.control(open_named(run, "training"), action, details or [], timeout, force)
    code = {True: 0, False: 1, None: 3 if timeout else 0}[answer["applied"]]
    return Result(answer, watch.answered(answer, timeout), code)


@command()
def check(
    source: str,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    answer_after: str = "auto",
    numbers: bool = False,
    other: str | None = None,
    out: Path | None = None,
    policy: str | None = None,
    chat_template_kwargs: TemplateKwargs = None,
    system: str = "none",
) -> Result:
    """Check a dataset: which rows can be used, and why not the others.

    Every row is kept, repaired by a stated rule, or listed with its reason. Nothing is loaded on a
    GPU. Names like question or ground_truth are used for the prompt and the answer if there is no
    doubt, and the report says so; --prompt and --answer choose. Exits with 1 if no row could be
    kept.

    Examples: `workbench check train.jsonl`, `workbench check questions.csv --answer expert_answer
    --out tasks/mine/train.jsonl`, `workbench check openai/gsm8k --numbers --policy tiny --system
    tags`.

    Args:
        source: A .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder, owner/name, or a
            name that ships.
        prompt: Column that holds the prompt; "{instruction}\\n\\n{input}" joins columns.
        answer: Column of the answer, or a field in one (reward_model.ground_truth); assistant: the
            assistant's last turn; none: no answers.
        subset: Subset (configuration) of a hub dataset.
        split: Split of a hub dataset or folder; default: train.
        answer_after: Mark before the answer; auto: it is taken out of its tag, box, #### or
            choice, and labels are spelt alike; none: it stays as it is.
        numbers: Leave out rows whose answer is not a number.
        other: Rows of the other split: prompts that occur there are left out.
        out: Write the kept rows here, as JSON lines.
        policy: Measure prompts with its template, tokenizer: tiny, smollm2, owner/name, a folder.
        system: System message for prompts that are text: tags, think, mark, none, or your text.
    """
    from workbench.checking import check_source
    from workbench.views.terminal import progress

    # How many rows there are is not known, so a count is of use only to someone who watches it.
    with progress("rows") if sys.stderr.isatty() else contextlib.nullcontext() as bar:
        checked = check_source(
            source,
            prompt_column=prompt,
            answer_column=answer,
            subset=subset,
            split=split,
            answer_after=None if answer_after == "none" else answer_after,
            numbers=numbers,
            other=other,
            out=out,
            policy=policy,
            chat_template_kwargs=chat_template_kwargs,
            system=system,
            progress=bar,
        )
    return Result(checked.found(), checked, 0 if checked.report.kept_rows else 1)


@command(least={"prompts": 1, "max_completion_length": 1, "deadline": 0.1, "rollouts": 0})
def probe(
    task: TaskFile,
    *,
    policy: str | None = None,
    chat_template_kwargs: TemplateKwargs = None,
    prompts: int = 6,
    weight: Weight = None,
    max_completion_length: int = 512,
    cases: str | None = None,
    deadline: float = 10.0,
    rollouts: int = 0,
) -> Result:
    """Find rewards that cannot pay, and what reward hacks earn.

    It takes seconds on a CPU, before any training. From the task's own prompts it makes the
    completion that an honest policy would write, the reference, and more than twenty that a policy
    would love to get away with (empty tags, several answers, padding, refusal, cut before the
    closing tag, ...), and scores them all. It names the function that cannot pay, with the line
    that nothing reaches, and the reward hack that earns as much as the reference completion.
    Regression cases (completion -> expected scores) are checked too.

    Where the reference completion cannot be read off the prompt, the task gives it:
    Task(ideal=lambda row: ...). Your own reward hacks: Task(probes={name: text or function of the
    row}).

    Where the task has an environment, the starts of a group are compared: a member that begins in a
    luckier state is rewarded for it. --rollouts measures how much of the reward is such luck.

    Exits with 1 if a reward cannot pay or fails, if a reward hack earns at least what the reference
    completion earns, if `reset` raises, or if a regression case does not hold.

    Examples: `workbench probe arithmetic --policy tiny`, `workbench probe tasks/mine/task.py
    --json`.

    Args:
        policy: Pass the reference through its template, tokenizer: tiny, smollm2, owner/name, or
            a folder.
        prompts: Prompts to try, spread over the task's.
        max_completion_length: Tokens that a completion may have.
        cases: File of regression cases; default: cases.jsonl beside the task file.
        deadline: Seconds per function for all completions (a judge may need minutes), and per call
            of an environment.
        rollouts: With --policy: play this many from each of 8 starts of 16 prompts; try 8.
    """
    from workbench.checking import tokenizer_of
    from workbench.views.audit import audit_view
    from workbench.views.terminal import progress

    with progress("functions") as bar:
        audit = wb.audit_rewards(
            task,
            tokenizer=tokenizer_of(policy, chat_template_kwargs),
            weights=weights_of(weight),
            rows=prompts,
            max_completion_length=max_completion_length,
            cases=cases,
            deadline_s=deadline,
            progress=bar,
        )
    if rollouts:
        from workbench.inspection.starts import luck_finding
        from workbench.recipe import template_kwargs

        if policy is None:
            raise PolicyError(
                "--rollouts without --policy",
                rule="a policy plays the rollouts",
                remedy="--policy tiny, owner/name, or a folder",
            )
        loaded = wb.load_policy(
            policy,
            chat_template_kwargs=template_kwargs(chat_template_kwargs, "chat_template_kwargs"),
            max_seq_length=max_completion_length + 1024,
        )
        with progress("prompts") as bar:
            luck = luck_finding(
                loaded,
                wb.load_task(task),
                weights=weights_of(weight),
                per_start=rollouts,
                max_completion_length=max_completion_length,
                progress=bar,
            )
        audit = dataclasses.replace(audit, findings=[luck, *audit.findings])
    return Result(audit.found(), audit_view(audit, chart=False), 0 if audit.ok else 1)


@command(least={"cases": 2})
def trial(source: str, *, function: str | None = None, cases: int = 40) -> Result:
    """Put a judge on trial, before it may train.

    For a reward function made by make_judge_reward or make_ranking_reward. From the task's own
    prompts it makes good and wrong completions, and tempts the judge: the same pair in the other
    order, the same answer padded, in bold, with white space, with a claim, with a note to the
    grader; and it asks the same thing twice. Each measure has an interval, and a limit with its
    reason: passed, failed, or cannot be told (too few cases: raise --cases). What judging a run
    will take, in calls, tokens and minutes, is measured, too.

    The judge is really asked: some 10 questions for each case, 14 if it ranks. The result is kept
    in judges/trials.jsonl; `workbench plan` and `train` ask for it, until the judge, its rubric or
    the prompts change.

    Exits with 1 unless all is passed.

    Examples: `workbench trial task.py`, `workbench trial recipe.yaml --cases 80 --json`.

    Args:
        source: A task file or the name of a task; or a recipe (.yaml), for the price of its run.
        function: The reward function on trial, if several ask a judge.
        cases: Prompts, spread over the task's.
    """
    from workbench.display import view_of
    from workbench.views.terminal import progress

    with progress("prompts") as bar:
        result = wb.trial(source, function=function, cases=cases, progress=bar)
    return Result(result.found(), view_of(result), 0 if result.ok else 1)


@command()
def doctor() -> Result:
    """Report versions, the device, and what works on this machine.

    4-bit, bf16, vLLM, widgets, and a remedy for what does not work. Exits with 1 if training does
    not work here, as in an install without the extra train.
    """
    from workbench.doctor import examine_machine, tables

    report = examine_machine()
    broken = any(each["needed"] and not each["works"] for each in report["findings"])
    return Result(report, tables(report), int(broken))


@command(streams=True)
def lab(*, port: Port = 8888, browser: Browser = True) -> None:
    """Open JupyterLab on the five notebooks.

    Start with 01_dataset and continue in order; each notebook says what it needs and what it
    leaves. Stop with Ctrl-C.
    """
    from workbench.demo import notebooks_to_edit

    _open_lab(notebooks_to_edit() / "01_dataset.ipynb", port, browser)


@command()
def explain(term: str | None = None, *, trl: str | None = None) -> Result:
    """Explain a metric, a setting or a word; without one, list them.

    Meaning, unit, healthy range, and what changed in which version.

    Examples: `workbench explain clip_ratio`, `workbench explain reward_std --trl 0.26`.

    Args:
        term: A metric, a setting or a word, such as clip_ratio or 'dead group'.
        trl: Explain it for this version of TRL, such as an older guide's.
    """
    from workbench.teaching import glossary

    if term is not None:
        entry = wb.explain(term, trl)
        return Result(entry, entry)
    terms = glossary.terms()
    return Result(terms, "\n".join(f"{kind}: {', '.join(names)}" for kind, names in terms.items()))


@command()
def lesson(
    name: str | None = None,
    *,
    again: bool = False,
    solved: bool = False,
    grade: Path | None = None,
    csv: Path | None = None,
    port: Port = 8888,
    browser: Browser = True,
) -> Result:
    """Open a lesson; without a name, list them with your progress.

    A lesson is a notebook, copied into lessons/ of the workspace, where your own copy is never
    overwritten. Needs no GPU and no network. Your progress is kept in lessons/progress.jsonl.

    With --grade, for teachers: who passed what, by the pass records in the learners' notebooks and
    in their lessons/progress.jsonl. Nothing of theirs is run. Exit code 1: something needs a look.

    Examples: `workbench lesson`, `workbench lesson grpo_by_hand`, `workbench lesson broken_runs
    --solved`, `workbench lesson --grade handed_in --csv grades.csv`.

    Args:
        name: A lesson's name or number; none: list them, with your progress.
        again: Open a fresh copy; yours stays.
        solved: Write a copy with every blank filled in, for a teacher, and open nothing.
        grade (--grade FOLDER): Grade what was handed in: a folder or a notebook of each learner.
        csv (--csv FILE): With --grade, write a line for each learner and blank; no file is
            overwritten.
    """
    from workbench.teaching import lessons
    from workbench.views.tables import Table

    if grade is not None:
        from workbench.teaching import grading

        grades = grading.grade(grade, name)
        if csv is not None:
            print(f"written: {shown(grading.write_grades(grades, csv))}", file=sys.stderr)
        text = f"{Table(*grades.points_table())}\n\n{grades.remarks()}"
        return Result(grades, text, int(grades.needs_a_look))
    if csv is not None:
        raise RequestError(
            f"--csv {csv} without --grade",
            rule="the CSV is of grades",
            remedy="add --grade FOLDER",
        )
    if name is not None:
        copy = lessons.copy_of(name, again, solved)
        if not solved:
            _open_lab(copy, port, browser)
        return Result({"copy": str(copy)}, f"solved copy: {shown(copy)}")
    listed = lessons.lessons()
    rows = []
    for lesson in listed:
        passed = f"{len(lesson['passed'])} of {lesson['exercises']}" if lesson["exercises"] else "-"
        minutes = "not measured" if lesson["minutes"] is None else lesson["minutes"]
        rows.append([lesson["lesson"], lesson["title"], minutes, passed, lesson["last"] or "-"])
    return Result(listed, Table(["lesson", "title", "minutes to run", "passed", "last"], rows))


def _open_lab(notebook: Path, port: int, browser: bool) -> None:

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


if __name__ == "__main__":
    main()
