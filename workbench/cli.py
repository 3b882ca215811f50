"""The same stages without a notebook. A command and a notebook cell call the same functions.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from workbench.command import (
    AsJson,
    Result,
    Set,
    Steps,
    TaskFile,
    TemplateKwargs,
    Weight,
    Words,
    app,
    arg,
    as_flags,
    command,
    json_text,
    main,
    open_named,
    opt,
    weights_of,
)  # fmt: skip
from workbench.errors import WorkbenchError
from workbench.kinds import Fields


@command()
def demo(
    name: Annotated[
        str, opt("Name of the run; its folder is runs/NAME (NAME-2, ... if it exists).")
    ] = "demo",
    seed: Annotated[int, opt("The same seed gives the same result on the same machine.")] = 0,
    steps: Annotated[
        int | None, opt("Train this many steps instead of notebook 03's own number.", min=1)
    ] = None,
) -> Result:
    """Execute the five notebooks in order in real kernels, and report what the training gained.

    The executed notebooks and a report (HTML) stay under runs/NAME. Needs no GPU and no network.
    """
    from workbench.demo import NOTEBOOKS, result_table, run_notebooks
    from workbench.run.directory import check_name
    from workbench.views.terminal import Bar

    check_name(name)
    with Bar("cells") as bar:
        tasks = {
            stem: bar.add_task(stem, total=None, start=False, numbers="") for stem in NOTEBOOKS
        }

        def on_cell(stem: str, done: int, total: int) -> None:
            bar.start_task(tasks[stem])
            bar.update(tasks[stem], completed=done, total=total, numbers="")
            if not bar.console.is_terminal and done == total:
                print(f"{stem}: {total} cells", file=sys.stderr, flush=True)

        def on_step(done: int) -> None:
            bar.update(tasks["03_train"], numbers=f"{done} steps trained")

        parameters = {"03_train": {"max_steps": steps}} if steps else None
        result = run_notebooks(
            name, seed=seed, parameters=parameters, on_cell=on_cell, on_step=on_step
        )
    return Result(result, result_table(result))


@command()
def notebook(
    which: Annotated[
        str, arg("One of the five, such as 03, train or 03_train; or the path of an .ipynb file.")
    ],
    set_: Annotated[
        Words,
        opt("NAME=VALUE: one of its parameters; may be repeated.", "--set", metavar="NAME=VALUE"),
    ] = None,
    out: Annotated[
        Path | None, opt("Write the executed copy here, instead of a new file in runs/notebooks/.")
    ] = None,
) -> Result:
    """Run one notebook from a terminal, with your parameters, in a fresh kernel.

    A parameter is assigned in the notebook's cell of parameters (or the folded one below it), or is
    an entry of a dict there, as max_steps is of `grpo`; an unknown one is an error that names the
    nearest right one. Values are Python literals (5, 1e-4, True, None, [1, 2]), and text where text
    stands now. The notebook itself is not changed: the executed copy, with all its outputs, is
    written even if a cell fails. Exits with 2 if one does.

    Examples: `workbench notebook 03 --set max_steps=5 --set run_name=short`,
    `workbench notebook inspect --set run_name=short --out short.ipynb`.
    """
    from workbench.demo import find_notebook, run_notebook
    from workbench.views.terminal import progress
    from workbench.workspace import shown

    with progress("cells", find_notebook(which).stem) as on_cell:
        executed = run_notebook(which, set_ or [], out, on_cell)
    return Result(
        executed, f"{executed['minutes']:.1f} minutes; executed copy: {shown(executed['out'])}"
    )


@command()
def plan(
    source: Annotated[
        str,
        arg(
            "A recipe (.yaml), a preset, a script (.py; read, never run), or - for standard input."
        ),
    ],
    vram: Annotated[
        float | None, opt("GPU memory in GB to plan for, instead of this machine's card.", min=1)
    ] = None,
    out: Annotated[Path | None, opt("Write the recipe here (YAML), under today's names.")] = None,
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """What would this run do, and does it fit? Settings requested and effective, the batch in
    words, GPU memory.

    The policy is not loaded. Old names are translated, each with a line; unknown ones,
    contradictions and batches without whole groups are errors (exit code 2); exits with 1 if it
    does not fit. "Effective" means on this machine; without a GPU, memory is estimated as on one. A
    preset is a recipe to start from; an unknown name lists them.

    Examples: `workbench plan t4 --vram 16`, `workbench plan train.py --out recipe.yaml`,
    `workbench plan recipe.yaml --set learning_rate=1e-5`, `workbench plan recipe.yaml --set
    algorithm=gspo`.
    """
    from workbench.training.prepare import plan

    recipe = sys.stdin.read() + "\n" if source == "-" else source
    planned = plan(recipe, vram_gb=vram, said=said or [], steps=steps)
    if out:
        planned.recipe.save(out)
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
    recipe: Annotated[
        str,
        arg(
            "Recipe file (YAML) or a preset's name; workbench/tiny/recipe.yaml is one to start"
            " from."
        ),
    ],
    run_name: Annotated[str | None, opt("Name of the run, instead of the recipe's.")] = None,
    runs: Annotated[str, opt("Folder for the run's folder.")] = "runs",
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """Train as a recipe says, without a notebook. Ctrl-C stops after the step and saves; a second
    one aborts.

    While it trains, `workbench watch` shows it and `workbench control` steers it, from any other
    terminal. A run that was stopped or killed resumes with `workbench continue`.

    Examples: `workbench train recipe.yaml --steps 20 --set learning_rate=1e-5 --set
    policy.load_in_4bit=false`, `workbench train recipe.yaml --set algorithm=dr_grpo` (or grpo,
    dapo, gspo, gdpo, cispo: the settings of that paper).
    """
    from workbench.recipe import Recipe
    from workbench.training.presets import find_recipe
    from workbench.training.settings import overridden
    from workbench.training.trainer import train
    from workbench.views.terminal import TerminalProgress

    edited = overridden(Recipe.load(find_recipe(recipe)), said or [], steps)
    edited.run_name = run_name or edited.run_name
    terminal = TerminalProgress()
    return _trained(lambda: train(edited, watchers=[terminal], runs=runs), terminal)


@command("continue")
def continue_(
    run: Annotated[
        str, arg("A run by name or path; latest: the last that is not training.")
    ] = "latest",
    steps: Annotated[
        int | None, opt("Train this many steps more (do not repeat this after a kill).", min=1)
    ] = None,
    checkpoint: Annotated[
        str | None, opt("Resume from this one, checkpoint-20; later ones are deleted.", "--from")
    ] = None,
    accept_changes: Annotated[
        bool,
        opt("Resume although recipe, rows or rewards were changed; recorded.", "--accept-changes"),
    ] = False,
    take_over: Annotated[
        bool,
        opt("The run began on another machine, now gone (a lost Colab runtime).", "--take-over"),
    ] = False,
) -> Result:
    """Resume a run that was stopped, failed or was killed, from its latest checkpoint, in its own
    folder.

    Optimiser, schedule, random states and the order of the prompts are those of the checkpoint; on
    a CPU the numbers are those of a run that was never stopped.
    """
    from workbench.training.trainer import continue_run
    from workbench.views.terminal import TerminalProgress

    opened = open_named(run, "begun" if take_over else "resting")
    how: Fields = {
        "steps": steps,
        "checkpoint": checkpoint,
        "accept_changes": accept_changes,
        "take_over": take_over,
    }
    terminal = TerminalProgress()
    return _trained(lambda: continue_run(opened, watchers=[terminal], **how), terminal)


def _trained(training: Callable[[], Any], terminal: Any) -> Result:
    from workbench.workspace import shown

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


@app.command()
def watch(
    run: Annotated[
        str, arg("A run by name or path; latest: the one training, or begun last.")
    ] = "latest",
    once: Annotated[bool, opt("Print its current state and exit.", "--once")] = False,
    png: Annotated[Path | None, opt("Write its current curves to this file.")] = None,
    every: Annotated[float, opt("Seconds between two updates.", min=0.1)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow a run that trains in another process: its numbers, its health, its changes. Ends when
    the run ends.

    Ctrl-C stops watching, not the run. --once, --png and --json show its current state and exit.
    """
    from workbench.views import watch as views
    from workbench.views.run_view import FollowedRun
    from workbench.workspace import replace_file

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


@command(context_settings={"ignore_unknown_options": True})  # a weight may be negative
def control(
    run: Annotated[str, arg("A run by name or path; latest: the one training.")],
    action: Annotated[
        str,
        arg(
            "stop, pause, resume, checkpoint, sample, weight, mute, unmute, reload, beta or"
            " learning_rate."
        ),
    ],
    details: Annotated[
        Words, arg("weight: FUNCTION VALUE; mute, unmute: FUNCTION; beta, learning_rate: VALUE.")
    ] = None,
    timeout: Annotated[
        float, opt("Seconds to wait for the trainer's answer; 0: do not wait.", min=0)
    ] = 60.0,
    force: Annotated[
        bool, opt("Also take a learning rate or beta over 100 times the effective one.", "--force")
    ] = False,
) -> Result:
    """Send a request to a run that is training; it is applied at the end of the step in flight and
    recorded in events.jsonl.

    Exits with 1 if the run refuses, with 3 if it has not answered in time.

    Examples: `workbench control latest stop`, `workbench control latest weight format_reward 0.5`.
    """
    from workbench.views import watch

    answer = watch.control(open_named(run, "training"), action, details or [], timeout, force)
    code = {True: 0, False: 1, None: 3 if timeout else 0}[answer["applied"]]
    return Result(answer, watch.answered(answer, timeout), code)


@command()
def check(
    source: Annotated[
        str,
        arg(
            "A .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder, owner/name, or a name"
            " that ships."
        ),
    ],
    prompt: Annotated[
        str | None, opt("Column that holds the prompt, if it is not called so.")
    ] = None,
    answer: Annotated[
        str | None,
        opt("Column of the answer; assistant: the assistant's last turn; none: no answers."),
    ] = None,
    subset: Annotated[str | None, opt("Subset (configuration) of a hub dataset.")] = None,
    split: Annotated[str | None, opt("Split of a hub dataset or folder; default: train.")] = None,
    answer_after: Annotated[
        str, opt("Mark before the answer; auto: ####, if most answers end so; none: no mark.")
    ] = "auto",
    numbers: Annotated[
        bool, opt("Leave out rows whose answer is not a number.", "--numbers")
    ] = False,
    other: Annotated[
        str | None, opt("Rows of the other split: prompts that occur there are left out.")
    ] = None,
    out: Annotated[Path | None, opt("Write the kept rows here, as JSON lines.")] = None,
    policy: Annotated[
        str | None, opt("Measure prompts with its template, tokenizer: tiny, owner/name, a folder.")
    ] = None,
    chat_template_kwargs: TemplateKwargs = None,
    system: Annotated[
        str, opt("System message for prompts that are text: tags, think, mark, none, or your text.")
    ] = "none",
) -> Result:
    """Check a dataset: every row is kept, repaired by a stated rule, or listed with its reason.
    Nothing is loaded on a GPU.

    Names like question or ground_truth are used for the prompt and the answer if there is no doubt,
    and the report says so; --prompt and --answer choose. Exits with 1 if no row could be kept.

    Examples: `workbench check train.jsonl`, `workbench check questions.csv --answer expert_answer
    --out tasks/mine/train.jsonl`, `workbench check openai/gsm8k --numbers --policy tiny --system
    tags`.
    """
    from workbench.checking import check_source
    from workbench.views.terminal import progress

    columns = {
        "prompt_column": prompt,
        "answer_column": answer,
        "numbers": numbers,
        "subset": subset,
        "split": split,
    }
    template = {"policy": policy, "chat_template_kwargs": chat_template_kwargs, "system": system}
    mark = None if answer_after == "none" else answer_after
    # How many rows there are is not known, so a count is of use only to someone who watches it.
    with progress("rows") if sys.stderr.isatty() else contextlib.nullcontext() as bar:
        checked = check_source(
            source, other=other, out=out, progress=bar, answer_after=mark, **template, **columns
        )
    return Result(checked.found(), checked, 0 if checked.report.kept_rows else 1)


@command()
def probe(
    task: TaskFile,
    policy: Annotated[
        str | None,
        opt("Pass the reference through its template, tokenizer: tiny, owner/name, a folder."),
    ] = None,
    chat_template_kwargs: TemplateKwargs = None,
    prompts: Annotated[int, opt("Prompts to try, spread over the task's.", min=1)] = 6,
    weight: Weight = None,
    max_completion_length: Annotated[int, opt("Tokens that a completion may have.", min=1)] = 512,
    cases: Annotated[
        str | None, opt("File of regression cases; default: cases.jsonl beside the task file.")
    ] = None,
    deadline: Annotated[
        float, opt("Seconds per function for all completions; a judge may need minutes.", min=0.1)
    ] = 10.0,
) -> Result:
    """Can these rewards pay, and what do reward hacks earn? Seconds on a CPU, before any training.

    From the task's own prompts it makes the completion that an honest policy would write, the
    reference, and more than twenty that a policy would love to get away with (empty tags, several
    answers, padding, refusal, cut before the closing tag,
    ...), and scores them all. It names the function that cannot pay, with the line that nothing
    reaches, and the reward hack that earns as much as the reference completion. Regression cases
    (completion -> expected scores) are checked too.

    Where the reference completion cannot be read off the prompt, the task gives it:
    Task(ideal=lambda row: ...). Your own reward hacks: Task(probes={name: text or function of the
    row}).

    Exits with 1 if a reward cannot pay or fails, if a reward hack earns at least what the reference
    completion earns, or if a regression case does not hold.

    Examples: `workbench probe arithmetic --policy tiny`, `workbench probe tasks/mine/task.py
    --json`.
    """
    from workbench.audit.examination import audit_rewards
    from workbench.checking import tokenizer_of
    from workbench.views.audit import audit_view
    from workbench.views.terminal import progress

    limits = {
        "rows": prompts,
        "max_completion_length": max_completion_length,
        "deadline_s": deadline,
    }
    tokenizer, weights = tokenizer_of(policy, chat_template_kwargs), weights_of(weight)
    with progress("functions") as bar:
        audit = audit_rewards(
            task, tokenizer=tokenizer, weights=weights, cases=cases, progress=bar, **limits
        )
    return Result(audit.found(), audit_view(audit, chart=False), 0 if audit.ok else 1)


@command()
def replay(
    run: Annotated[str, arg("A run by name or path; latest: the last that recorded completions.")],
    task: Annotated[str, opt("The edited task: a task file, or the name of a task that ships.")],
    weight: Weight = None,
    aggregation: Annotated[
        str | None,
        opt(
            "sum_then_normalize or normalize_then_sum (GDPO), instead of the run's"
            " multi_objective_aggregation."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        opt("Write old and new advantage of every completion here, side by side (Parquet)."),
    ] = None,
    limit: Annotated[
        int | None, opt("Stop after this many replayed completions, from the first step on.", min=1)
    ] = None,
) -> Result:
    """Score a run's recorded completions again with an edited task: which advantages would have
    been different?

    Shows which advantages change sign, which dead groups come alive, how well the order within
    groups is kept, each function's share of the advantages, and which function now decides, with
    the old and new reward hashes. Nothing is trained, and no GPU is needed.

    It shows what the gradients of these batches would have favoured, not what a new run would
    reach: a policy trained under the new rewards would have written other completions.

    Examples: `workbench replay latest --task tasks/mine/task.py`, `workbench replay demo --task
    arithmetic --weight length_reward=0 --out changed.parquet`, `workbench replay demo --task
    arithmetic --aggregation normalize_then_sum`.
    """
    from workbench.replaying import replay as again
    from workbench.views.replay import replay_view
    from workbench.views.terminal import progress

    with progress("completions") as bar:
        changes = again(
            open_named(run, "recorded"),
            task,
            weights_of(weight),
            aggregation=aggregation,
            out=out,
            limit=limit,
            progress=bar,
        )
    return Result(changes.found(), replay_view(changes, charts=False))


@command("eval")
def eval_(
    run: Annotated[
        str, arg("A run by name or path; latest: the last that ended with an adapter.")
    ] = "latest",
    held_out: Annotated[int, opt("At most this many held-out prompts.", min=2)] = 200,
    samples: Annotated[
        int,
        opt("Completions per prompt; 16 or more tell whether it was taught or sharpened.", min=1),
    ] = 4,
    greedy: Annotated[
        bool, opt("Also take the likeliest tokens: one completion per prompt.", "--greedy")
    ] = False,
    checkpoints: Annotated[
        str, opt("Steps of checkpoints to measure also, such as 20,40; best; or all.")
    ] = "",
    seed: Annotated[int, opt("The same seed gives the same completions on the same machine.")] = 0,
) -> Result:
    """Is a run's policy better than its base? Both sampled on the same held-out prompts, as in
    training, and compared.

    Reports the gain with its 95 % interval, and how many more prompts it takes where that contains
    0; pass@k, majority vote and best of n; and whether the run taught (it solves prompts that its
    base does not solve in n tries) or sharpened (it solves at once what its base solves sometimes).
    Leaves evaluation.json and, in evaluation.parquet, every completion; what is there already is
    not measured again.

    Exits with 1 unless the gain's interval lies above 0.

    Examples: `workbench eval latest --held-out 80 --samples 16 --greedy`, `workbench eval demo
    --checkpoints all --json`.
    """
    from workbench.inspection.evaluation import evaluate
    from workbench.views.terminal import progress

    steps = (
        checkpoints if checkpoints == "all" else [step for step in checkpoints.split(",") if step]
    )
    how: Fields = {
        "held_out": held_out,
        "samples": samples,
        "seed": seed,
        "greedy": greedy,
        "checkpoints": steps,
    }
    opened = open_named(run, "trained")
    with progress("prompts sampled", "eval") as bar:
        evaluation = evaluate(opened, **how, progress=bar)
    return Result(evaluation.found, evaluation, int(not evaluation.found["gain"]["low"] > 0))


@command()
def report(
    run: Annotated[str, arg("A run, by name or path.")] = "latest",
    markdown: Annotated[
        bool, opt("Text without figures, report.md, for a pull request or an issue.", "--markdown")
    ] = False,
    answer_column: Annotated[
        str | None,
        opt(
            "The dataset column with the right answer, where its name does not tell.",
            "--answer-column",
        ),
    ] = None,
    eval_logs: Annotated[
        bool,
        opt(
            "What `workbench eval` measured, as logs for inspect_ai's viewer, instead.",
            "--eval-logs",
        ),
    ] = False,
    out: Annotated[
        Path | None, opt("The file (or folder of logs) to write; by default in the run's folder.")
    ] = None,
) -> Result:
    """One page on a run: is it better, was it taught or sharpened, is it healthy, what was fixed
    and what broke.

    Made from the record and from the last `workbench eval`; no model is loaded. The page holds all
    that it shows: no script, nothing fetched from a network, so it can be mailed or kept beside the
    run.

    Examples: `workbench report`, `workbench report demo --markdown --out demo.md`.
    """
    from workbench.reporting import write_report
    from workbench.workspace import shown

    if eval_logs:
        from workbench.inspection.eval_logs import write_eval_log

        files = write_eval_log(open_named(run, "recorded"), out)
        lines = [f"written: {shown(file)}" for file in files]
        lines.append(f"look: inspect view --log-dir {shown(files[0].parent)}")
        return Result({"eval_logs": files}, "\n".join(lines))
    file = write_report(
        open_named(run, "recorded"), out, markdown=markdown, answer_column=answer_column
    )
    return Result({"report": str(file)}, f"written: {shown(file)}")


@command()
def doctor() -> Result:
    """Report versions, device, and what works here (4-bit, bf16, vLLM, widgets), with a remedy for
    what does not.

    Exits with 1 if something that training needs does not work.
    """
    from workbench.doctor import examine_machine, tables

    report = examine_machine()
    broken = any(each["needed"] and not each["works"] for each in report["findings"])
    return Result(report, tables(report), int(broken))


@command(
    aborted=(
        "finished formats stay in export/, partial ones are removed; the same command makes the"
        " rest"
    )
)
def export(
    run: Annotated[
        str, arg("A run by name or path; latest: the last that ended with an adapter.")
    ] = "latest",
    formats: Annotated[
        Words,
        opt("adapter, merged_16bit, merged_4bit, gguf, or one of the three; repeat.", "--format"),
    ] = None,
    into: Annotated[
        str,
        opt("Merge into base (16 bits), or dequantised (4-bit weights in 16 bits); auto: by risk."),
    ] = "auto",
    overwrite: Annotated[bool, opt("Replace an existing export.", "--overwrite")] = False,
    best: Annotated[
        bool | None,
        opt("From now on the run's adapter is the best that eval_every kept; or the final one."),
    ] = None,
    push: Annotated[
        str | None, opt("OWNER/NAME: upload it to the hub, private; needs one --format, proven.")
    ] = None,
) -> Result:
    """Leave with the model: write a run's policy into runs/RUN/export/FORMAT, each format
    atomically.

    adapter: for PEFT and vLLM, beside the 16-bit base. merged_16bit: a standalone model, for
    transformers, vLLM and MLX. merged_4bit: the same in NF4. gguf: for llama.cpp and Ollama, as
    gguf_f16, gguf_q8_0 and gguf_q4_k_m. Without --format: adapter and merged_16bit. An existing
    export of the same adapter is kept.

    Exits with 1 if it is refused: another export in its place, no room, a missing tool, not proven.

    Examples: `workbench export`, `workbench export demo --format gguf_q4_k_m --push me/sums`.
    """
    from workbench.errors import ExportError
    from workbench.exporting import making, pushing
    from workbench.views.terminal import progress
    from workbench.workspace import find

    chosen = formats or ["adapter", "merged_16bit"]
    if of := next(
        (up.name for up in find(run).parents[:2] if (up / "manifest.json").is_file()), ""
    ):
        remedy = f"`workbench export {of}`; `workbench prove {run}` proves what is there"
        raise ExportError(
            f"{run}: a folder of run {of}", rule="what is exported is a run", remedy=remedy
        )
    if making.in_order(chosen, into) and push and (len(chosen) > 1 or chosen == ["gguf"]):
        rule, remedy = "a repository holds one artefact", "give one --format with --push"
        raise ExportError(f"--push with {', '.join(chosen)}", rule=rule, remedy=remedy)
    opened = open_named(run, "trained")
    if best is not None:
        opened.use_best(best)
    try:
        with progress("artefacts", "export") as bar:
            made = making.export(opened, chosen, into=into, overwrite=overwrite, progress=bar)
        address = pushing.push(made[chosen[0]], push) if push else None
    except ExportError as error:
        refusal = {"refused": error.value, "rule": error.rule, "remedy": as_flags(error.remedy)}
        return Result(refusal, f"refused: {as_flags(str(error))}", 1)
    return Result(
        made.found() | {"pushed": address}, f"{made}\npushed to {address}" if address else made
    )


@command(aborted="proven artefacts keep their proof.json; the same command starts the rest again")
def prove(
    artefact: Annotated[
        str, arg("An artefact's folder; or a run by name or path: all its exports.")
    ],
    run: Annotated[
        str | None, opt("The run that it was made from, where its folder does not tell.")
    ] = None,
    prompts: Annotated[
        int, opt("Held-out prompts; with fewer than 10, damage cannot be told from chance.", min=2)
    ] = 64,
    task: Annotated[str | None, opt("The run's task, where the original cannot be loaded.")] = None,
) -> Result:
    """Is an export the policy that was trained? Loaded back in a separate process, and compared
    with the live policy.

    From cheap to dear: sums of its files; tensors, layer by layer; token ids; then what it writes:
    the probabilities of completions that the policy sampled, and greedy answers to held-out
    prompts, rewarded as in training, with intervals. Quantised formats are measured, and fail only
    where they equal the base, do not end, or cost more than 5 points beyond chance. What cannot be
    told here is listed, not failed. Leaves proof.json beside the artefact.

    Exits with 1 if one fails; the cause and the remedy are in the text.

    Examples: `workbench prove latest`, `workbench prove runs/demo/export/gguf_q4_k_m --json`.
    """
    from workbench.exporting.checks import Proofs
    from workbench.exporting.proving import prove as prove_it
    from workbench.run.directory import open_run
    from workbench.task import load_task
    from workbench.views.terminal import Bar

    known = None if run is None else open_run(run)
    with Bar("") as bar:

        def begun(name: str) -> Callable[[int, int], None]:
            row = bar.add_task(name, total=None, numbers="")
            if not bar.console.is_terminal:
                print(f"proving {name}", file=sys.stderr, flush=True)
            return lambda done, total: bar.update(row, completed=done, total=total or None)

        proof = prove_it(
            artefact,
            run=known,
            prompts=prompts,
            task=load_task(task) if task else None,
            progress=begun,
        )
    proofs = proof if isinstance(proof, Proofs) else Proofs([proof])
    return Result({"passed": proofs.passed, "proofs": proofs}, proofs, int(not proofs.passed))


@command()
def ask(
    artefact: Annotated[
        str,
        arg(
            "An artefact's folder; or a run by name or path: of its exports, merged_16bit comes"
            " first."
        ),
    ],
    question: Annotated[str, arg("What to ask, in quotes.")],
    system: Annotated[
        str | None, opt("System prompt, instead of the one used in training; '': none.")
    ] = None,
    temperature: Annotated[float, opt("0 takes the likeliest token every time.", min=0)] = 0.0,
    base: Annotated[bool, opt("Also ask the base.", "--base")] = False,
) -> Result:
    """Ask an exported model one question. It answers from the artefact's own files; `wb.chat` is
    the same in a notebook.

    Example: `workbench ask latest "What is 15 + 27?" --base`.
    """
    from workbench.exporting.artefacts import meant
    from workbench.exporting.chat import Conversation

    folders = meant(artefact)[1]
    folder = next((each for each in folders if each.name == "merged_16bit"), folders[0])
    answers = Conversation(folder, system).reply(question, temperature, base).answers
    said = (
        f"[{who}: {one.length_tokens} tokens, {one.ended}]\n{one.text}"
        for who, one in answers.items()
    )
    return Result({"artefact": folder, "question": question, "answers": answers}, "\n".join(said))


@command()
def verify(
    path: Annotated[
        str,
        arg(
            "An artefact's folder, its passport.json; or a run by name or path: all its artefacts."
        ),
    ],
) -> Result:
    """Is an artefact still what was exported? Every byte of its files against its passport; the
    run, if it is at hand.

    Exits with 1 if something differs.

    Examples: `workbench verify demo`, `workbench verify runs/demo/export/merged_16bit`.
    """
    from workbench.exporting.passport import verify as verify_it

    artefacts = verify_it(path)
    passed = all(each.passed for each in artefacts)
    return Result(
        {"passed": passed, "artefacts": artefacts}, "\n".join(map(str, artefacts)), int(not passed)
    )


@app.command()
def lab(
    port: Annotated[int, opt("Port of the JupyterLab server.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, opt("Open a browser.")] = True,
) -> None:
    """Open JupyterLab on the five notebooks.

    Start with 01_dataset and continue in order; each notebook says what it needs and what it
    leaves. Stop with Ctrl-C.
    """
    from workbench.demo import notebooks_to_edit

    _open_lab(notebooks_to_edit() / "01_dataset.ipynb", port, browser)


@command()
def explain(
    term: Annotated[
        str | None, arg("A metric, a setting or a word, such as clip_ratio or 'dead group'.")
    ] = None,
    trl: Annotated[
        str | None, opt("Explain it for this version of TRL, such as an older guide's.")
    ] = None,
) -> Result:
    """What does this word mean? Meaning, unit, healthy range, and what changed in which version.
    Without a term: the list.

    Examples: `workbench explain clip_ratio`, `workbench explain reward_std --trl 0.26`.
    """
    from workbench.teaching import glossary

    if term is not None:
        entry = glossary.explain(term, trl)
        return Result(entry, entry)
    terms = glossary.terms()
    return Result(terms, "\n".join(f"{kind}: {', '.join(names)}" for kind, names in terms.items()))


@command()
def lesson(
    name: Annotated[
        str | None, arg("A lesson's name or number; none: list them, with your progress.")
    ] = None,
    again: Annotated[bool, opt("Open a fresh copy; yours stays.", "--again")] = False,
    solved: Annotated[
        bool,
        opt(
            "Write a copy with every blank filled in, for a teacher, and open nothing.", "--solved"
        ),
    ] = False,
    port: Annotated[int, opt("Port of the JupyterLab server.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, opt("Open a browser.")] = True,
) -> Result:
    """Open a lesson: a notebook, copied into lessons/ of the workspace, where your own copy is
    never overwritten.

    Needs no GPU and no network. Your progress is kept in lessons/progress.jsonl.

    Examples: `workbench lesson`, `workbench lesson grpo_by_hand`, `workbench lesson broken_runs
    --solved`.
    """
    from workbench.teaching import lessons
    from workbench.views.tables import Table
    from workbench.workspace import shown

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
    from workbench.workspace import shown

    if importlib.util.find_spec("jupyterlab") is None:
        value, rule = (
            "JupyterLab is not installed",
            "`workbench lab` and `lesson` start the JupyterLab of this environment",
        )
        remedy = (
            f"uv pip install jupyterlab; or open {shown(notebook)} in the Jupyter that you have,"
            " with this environment's kernel"
        )
        raise WorkbenchError(value, rule=rule, remedy=remedy)
    start = [sys.executable, "-m", "jupyterlab", str(notebook), f"--port={port}"]
    start += [f"--ServerApp.root_dir={notebook.parents[1]}"] + ([] if browser else ["--no-browser"])
    start += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    os.execv(start[0], start)


if __name__ == "__main__":
    main()
