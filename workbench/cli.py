"""The same stages without a notebook. A command and a notebook cell call the same functions.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from workbench import __version__
from workbench.errors import RecipeError, WorkbenchError
from workbench.printable import guard_output

# The commands as `workbench --help` lists them.
GROUPS = {
    "Begin": ["demo", "lab", "lesson", "explain", "doctor"],
    "Before training": ["check", "probe", "plan"],
    "Training": ["train", "continue", "watch", "control", "notebook"],
    "After training": ["eval", "replay", "report"],
    "Leave with the model": ["export", "prove", "verify", "ask"],
}


class Grouped(typer.core.TyperGroup):
    """The commands in groups, each with the whole first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            rows = [(name, re.split(r"(?<=[.?!])\s", self.commands[name].help or "", maxsplit=1)[0]) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, " ".join(text.split())) for name, text in rows])


app = typer.Typer(
    cls=Grouped,
    name="workbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train language models with GRPO on one GPU, and see why a run does or does not learn.\n\n"
    "Start with `workbench demo`: it runs the five notebooks on a small policy that comes with the package, "
    "on any machine, in minutes. Then `workbench lab` opens them for you.",
)


class Result(NamedTuple):
    """What a command found: for scripts (`--json`), for people, and its exit code."""

    found: Any
    text: Any
    code: int = 0


def command(name: str | None = None, aborted: str = "", **settings: Any) -> Callable[[Callable[..., Result]], None]:
    """A command of a function that returns a `Result`, which alone goes to standard output; `aborted`: what Ctrl-C leaves."""

    def add(function: Callable[..., Result]) -> None:
        def run(as_json: bool, **arguments: Any) -> None:
            from workbench.processes import is_main

            try:
                with contextlib.redirect_stdout(sys.stderr):  # what libraries print while they load
                    result = function(**arguments)
            except KeyboardInterrupt:  # typer would end without a word
                print(": ".join(filter(None, ["aborted", aborted])), file=sys.stderr)
                raise typer.Exit(130) from None
            if is_main():
                print(_json(result.found) if as_json else result.text)
            if result.code:
                raise typer.Exit(result.code)

        signature = inspect.signature(function, eval_str=True)
        as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), as_json])
        app.command(name or function.__name__, help=function.__doc__, **settings)(run)

    return add


def arg(help: str) -> Any:
    return typer.Argument(help=help)


def opt(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, **more)


AsJson = Annotated[bool, opt("Print one JSON object on standard output, for scripts.", "--json")]
Words = list[str] | None
Set = Annotated[Words, opt("KEY=VALUE over the recipe: a dotted field, or a GRPOConfig name; may be repeated.", "--set")]
Steps = Annotated[int | None, opt("Train this many steps instead of the recipe's.", min=1)]
TaskFile = Annotated[str, arg("A task file, or the name of a task that ships.")]
Weight = Annotated[Words, opt("NAME=VALUE: another weight for a function; may be repeated.")]
TemplateKwargs = Annotated[str | None, opt("With --policy, as in the recipe's grpo (JSON): '{\"enable_thinking\": false}'.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, opt("Print the version and exit.", "--version")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@command()
def demo(
    name: Annotated[str, opt("Name of the run; its folder is runs/NAME (NAME-2, ... if it exists).")] = "demo",
    seed: Annotated[int, opt("The same seed gives the same result on the same machine.")] = 0,
    steps: Annotated[int | None, opt("Train this many steps instead of notebook 03's own number.", min=1)] = None,
) -> Result:
    """Execute the five notebooks in order in real kernels, and report what the training bought.

    The executed notebooks and a report (HTML) stay under runs/NAME. Needs no GPU and no network.
    """
    from workbench.demo import NOTEBOOKS, result_table, run_notebooks
    from workbench.run.directory import check_name
    from workbench.views.terminal import Bar

    check_name(name)
    with Bar("cells") as bar:
        tasks = {stem: bar.add_task(stem, total=None, start=False, numbers="") for stem in NOTEBOOKS}

        def on_cell(stem: str, done: int, total: int) -> None:
            bar.start_task(tasks[stem])
            bar.update(tasks[stem], completed=done, total=total, numbers="")
            if not bar.console.is_terminal and done == total:
                print(f"{stem}: {total} cells", file=sys.stderr, flush=True)

        def on_step(done: int) -> None:
            bar.update(tasks["03_train"], numbers=f"{done} steps trained")

        parameters = {"03_train": {"max_steps": steps}} if steps else None
        found = run_notebooks(name, seed=seed, parameters=parameters, on_cell=on_cell, on_step=on_step)
    return Result(found, result_table(found))


@command()
def notebook(
    which: Annotated[str, arg("One of the five, as 03, train or 03_train; or the path of an .ipynb file.")],
    set_: Annotated[Words, opt("NAME=VALUE: one of its parameters; may be repeated.", "--set", metavar="NAME=VALUE")] = None,
    out: Annotated[Path | None, opt("Write the executed copy here, instead of a new file in runs/notebooks/.")] = None,
) -> Result:
    """Run one notebook from a terminal, with your parameters, in a fresh kernel.

    A parameter is a line of the notebook's first code cell; an unknown one is an error that names the nearest right one.
    Values are Python literals (5, 1e-4, True, None, [1, 2]), and text where text stands now. The notebook itself is not
    changed: the executed copy, with all its outputs, is written also when a cell fails. Exits with 2 if one does.

    Examples: `workbench notebook 03 --set max_steps=5 --set run_name=short`,
    `workbench notebook inspect --set run_name=short --out short.ipynb`.
    """
    from workbench.demo import find_notebook, run_notebook
    from workbench.views.terminal import progress
    from workbench.workspace import shown

    with progress("cells", find_notebook(which).stem) as on_cell:
        found = run_notebook(which, set_ or [], out, on_cell)
    return Result(found, f"{found['minutes']:.1f} minutes; executed copy: {shown(found['out'])}")


@command()
def plan(
    source: Annotated[str, arg("A recipe (.yaml), a preset, a script (.py; read, never run), or - for standard input.")],
    vram: Annotated[float | None, opt("GPU memory in GB to plan for, instead of that of this machine's card.", min=1)] = None,
    out: Annotated[Path | None, opt("Write the recipe under today's names here (YAML).")] = None,
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """What would this run do, and does it fit? Settings requested and effective, the batch in words, GPU memory.

    The policy is not loaded. Old names are translated, each with a line; unknown ones, contradictions and batches without
    whole groups are errors (exit code 2); exits with 1 if it does not fit. "Effective" is what this machine would do; without
    a GPU here, memory is estimated as on one. A preset is a recipe to begin with; an unknown name lists them.

    Examples: `workbench plan t4 --vram 16`, `workbench plan train.py --out recipe.yaml`,
    `workbench plan recipe.yaml --set learning_rate=1e-5`, `workbench plan recipe.yaml --set algorithm=gspo`.
    """
    from workbench.training.prepare import plan

    found = plan(sys.stdin.read() + "\n" if source == "-" else source, vram_gb=vram, said=said or [], steps=steps)
    if out:
        found.recipe.save(out)
    if found.memory is None or found.memory.fits is not False:
        return Result(found.found(), found)
    from workbench.memory import cheapest

    text = "\n  - ".join([f"{found}\n\nto make it fit, cheapest first (estimates):", *cheapest(found.memory)])
    return Result(found.found(), text, 1)


@command()
def train(
    recipe: Annotated[str, arg("Recipe file (YAML) or a preset's name; workbench/tiny/recipe.yaml is one to start from.")],
    run_name: Annotated[str | None, opt("Name of the run, instead of the recipe's.")] = None,
    runs: Annotated[str, opt("Folder for the run's folder.")] = "runs",
    steps: Steps = None,
    said: Set = None,
) -> Result:
    """Train as a recipe says, without a notebook. Ctrl-C stops after the step and saves; a second one aborts.

    While it trains, `workbench watch` shows it and `workbench control` steers it, from any other terminal. A run that was
    stopped or killed goes on with `workbench continue`.

    Examples: `workbench train recipe.yaml --steps 20 --set learning_rate=1e-5 --set policy.load_in_4bit=false`,
    `workbench train recipe.yaml --set algorithm=dr_grpo` (or grpo, dapo, gspo, gdpo, cispo: the settings of that paper).
    """
    from workbench.recipe import Recipe
    from workbench.training.plan import overridden
    from workbench.training.presets import find_recipe
    from workbench.training.trainer import train
    from workbench.views.terminal import TerminalProgress

    asked = overridden(Recipe.load(find_recipe(recipe)), said or [], steps)
    asked.run_name = run_name or asked.run_name
    terminal = TerminalProgress()
    return _trained(lambda: train(asked, watchers=[terminal], runs=runs), terminal)


@command("continue")
def continue_(
    run: Annotated[str, arg("A run by name or path; latest: the last that does not train.")] = "latest",
    steps: Annotated[int | None, opt("Raise the recipe's max_steps by so many; not to be repeated after a kill.", min=1)] = None,
    checkpoint: Annotated[str | None, opt("Go on from this one, checkpoint-20; later ones are deleted.", "--from")] = None,
    accept_changes: Annotated[
        bool, opt("Go on although recipe, rows or rewards were changed; recorded.", "--accept-changes")
    ] = False,
    take_over: Annotated[bool, opt("The run began on another machine, now gone (a lost Colab runtime).", "--take-over")] = False,
) -> Result:
    """Go on with a run that was stopped, failed or was killed, from its latest checkpoint, in its own folder.

    Optimiser, schedule, random states and the order of the prompts are those of the checkpoint; on a CPU the numbers are
    those of a run that was never stopped.
    """
    from workbench.training.trainer import continue_run
    from workbench.views.terminal import TerminalProgress

    opened = _opened(run, "begun" if take_over else "resting")
    how = {"steps": steps, "checkpoint": checkpoint, "accept_changes": accept_changes, "take_over": take_over}
    terminal = TerminalProgress()
    return _trained(lambda: continue_run(opened, watchers=[terminal], **how), terminal)


def _trained(training: Callable[[], Any], terminal: Any) -> Result:
    from workbench.workspace import shown

    try:
        run = training()
    except BaseException:
        print(terminal.ended, end="\n" if terminal.ended else "", file=sys.stderr)
        raise
    found = {"run": str(run.path), "adapter": str(run.adapter), "ended": terminal.ended, **run.result()}
    text = f"{found['minutes']:.1f} minutes; adapter in {shown(run.adapter)}; next: `workbench eval {run.name}`, or notebook 04"
    return Result(found, "\n".join(filter(None, [terminal.ended, text])))


@app.command()
def watch(
    run: Annotated[str, arg("A run by name or path; latest: the one that trains, or was begun last.")] = "latest",
    once: Annotated[bool, opt("Print how it stands now, and end.", "--once")] = False,
    png: Annotated[Path | None, opt("Write its curves as they stand now to this file.")] = None,
    every: Annotated[float, opt("Seconds between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow a run that trains in another process: its numbers, its health, what is changed. Ends when the run ends.

    Ctrl-C ends the watching, not the run. --once, --png and --json show how it stands now, and end.
    """
    from workbench.views import watch as views
    from workbench.views.run_view import FollowedRun
    from workbench.workspace import replace_file

    followed = FollowedRun(_opened(run, "training"))
    if png is not None:
        with replace_file(png) as beside:  # whole or not at all
            beside.write_bytes(followed.picture(followed.line())[0])
        print(f"curves written to {png}", file=sys.stderr)
    if as_json:
        print(_json(views.snapshot(followed)))
    elif once or (png is None and followed.over):
        print(views.snapshot_text(followed))
    elif png is None:
        views.follow(followed, every)


@command(context_settings={"ignore_unknown_options": True})  # a weight may be negative
def control(
    run: Annotated[str, arg("A run by name or path; latest: the one that trains.")],
    action: Annotated[str, arg("stop, pause, resume, checkpoint, sample, weight, mute, unmute, reload, beta or learning_rate.")],
    details: Annotated[Words, arg("weight: FUNCTION VALUE; mute, unmute: FUNCTION; beta, learning_rate: VALUE.")] = None,
    timeout: Annotated[float, opt("Seconds to wait for the trainer's answer; 0: do not wait.", min=0)] = 60.0,
    force: Annotated[bool, opt("Also take a learning rate or beta over 100 times the effective one.", "--force")] = False,
) -> Result:
    """Ask a run that trains for something; it is applied at the end of the step in flight, and recorded in events.jsonl.

    Exits with 1 if the run refuses, with 3 if it has not answered in time.

    Examples: `workbench control latest stop`, `workbench control latest weight format_reward 0.5`.
    """
    from workbench.views import watch

    found = watch.control(_opened(run, "training"), action, details or [], timeout, force)
    code = {True: 0, False: 1, None: 3 if timeout else 0}[found["applied"]]
    return Result(found, watch.answered(found, timeout), code)


@command()
def check(
    source: Annotated[str, arg("A .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder, owner/name, or a name that ships.")],
    prompt: Annotated[str | None, opt("Column that holds the prompt, if it is not called so.")] = None,
    answer: Annotated[str | None, opt("Column of the answer; assistant: the assistant's last turn; none: no answers.")] = None,
    subset: Annotated[str | None, opt("Subset (configuration) of a hub dataset.")] = None,
    split: Annotated[str | None, opt("Split of a hub dataset or folder; default: train.")] = None,
    answer_after: Annotated[str, opt("Mark before the answer; auto: ####, if most answers end so; none: no mark.")] = "auto",
    numbers: Annotated[bool, opt("Leave out rows whose answer is not a number.", "--numbers")] = False,
    other: Annotated[str | None, opt("Rows of the other split: prompts that are also there are left out.")] = None,
    out: Annotated[Path | None, opt("Write the rows that were kept here, as JSON lines.")] = None,
    policy: Annotated[str | None, opt("Measure prompts with its template and tokenizer: tiny, owner/name, a folder.")] = None,
    chat_template_kwargs: TemplateKwargs = None,
    system: Annotated[str, opt("System message for prompts that are text: tags, think, mark, none, or your text.")] = "none",
) -> Result:
    """Check a dataset: every row is kept, repaired by a stated rule, or listed with its reason. Nothing is loaded on a GPU.

    Names like question or ground_truth are used for the prompt and the answer if there is no doubt, and the report says so;
    --prompt and --answer choose. Exits with 1 if no row could be kept.

    Examples: `workbench check train.jsonl`, `workbench check questions.csv --answer expert_answer --out tasks/mine/train.jsonl`,
    `workbench check openai/gsm8k --numbers --policy tiny --system tags`.
    """
    from workbench.checking import check_source
    from workbench.views.terminal import progress

    columns = {"prompt_column": prompt, "answer_column": answer, "numbers": numbers, "subset": subset, "split": split}
    template = {"policy": policy, "chat_template_kwargs": chat_template_kwargs, "system": system}
    mark = None if answer_after == "none" else answer_after
    # How many rows there are is not known, so a count is of use only to someone who watches it.
    with progress("rows") if sys.stderr.isatty() else contextlib.nullcontext() as bar:
        found = check_source(source, other=other, out=out, progress=bar, answer_after=mark, **template, **columns)
    return Result(found.found(), found, 0 if found.report.kept_rows else 1)


@command()
def probe(
    task: TaskFile,
    policy: Annotated[str | None, opt("Send the reference through its template, tokenizer: tiny, owner/name, a folder.")] = None,
    chat_template_kwargs: TemplateKwargs = None,
    prompts: Annotated[int, opt("Prompts to try, spread over the task's.", min=1)] = 6,
    weight: Weight = None,
    max_completion_length: Annotated[int, opt("Tokens that a completion may have.", min=1)] = 512,
    cases: Annotated[str | None, opt("File of regression cases; default: cases.jsonl beside the task file.")] = None,
    deadline: Annotated[float, opt("Seconds for one function and all completions; a judge may need minutes.", min=0.1)] = 10.0,
) -> Result:
    """Can these rewards pay, and what do reward hacks earn? Seconds on a CPU, before any training.

    From the task's own prompts it makes the completion that an honest policy would write, the reference, and more than twenty
    that a policy would love to get away with (empty tags, several answers, padding, refusal, cut before the closing tag,
    ...), and scores them all. It names the function that cannot pay, with the line that nothing reaches, and the reward hack
    that earns as much as the reference completion. Regression cases (completion -> expected scores) are checked too.

    Where the reference completion cannot be read off the prompt, the task gives it: Task(ideal=lambda row: ...). Reward hacks
    of your own: Task(probes={name: text or function of the row}).

    Exits with 1 if a reward cannot pay or fails, if a reward hack earns at least what the reference completion earns, or if a
    regression case does not hold.

    Examples: `workbench probe arithmetic --policy tiny`, `workbench probe tasks/mine/task.py --json`.
    """
    from workbench.audit.examination import audit_rewards
    from workbench.checking import tokenizer_of
    from workbench.views.audit import audit_view
    from workbench.views.terminal import progress

    limits = {"rows": prompts, "max_completion_length": max_completion_length, "deadline_s": deadline}
    tokenizer, weights = tokenizer_of(policy, chat_template_kwargs), _weights(weight)
    with progress("functions") as bar:
        found = audit_rewards(task, tokenizer=tokenizer, weights=weights, cases=cases, progress=bar, **limits)
    return Result(found.found(), audit_view(found, chart=False), 0 if found.ok else 1)


@command()
def replay(
    run: Annotated[str, arg("A run by name or path; latest: the last that recorded completions.")],
    task: Annotated[str, opt("The edited task: a task file, or the name of a task that ships.")],
    weight: Weight = None,
    aggregation: Annotated[
        str | None, opt("sum_then_normalize or normalize_then_sum (GDPO), instead of the run's multi_objective_aggregation.")
    ] = None,
    out: Annotated[Path | None, opt("Write old and new advantage of every completion here, side by side (Parquet).")] = None,
    limit: Annotated[int | None, opt("Stop once this many completions are replayed, from the first step on.", min=1)] = None,
) -> Result:
    """Score a run's recorded completions again with an edited task: which advantages would have been different?

    Shows which advantages change sign, which dead groups come alive, how far the order within groups is kept, each function's
    share of the advantages, and which function now decides, with the old and new reward hashes. Nothing is trained, and no
    GPU is needed.

    It shows what the gradients of these batches would have favoured, not what a new run would reach: a policy trained
    under the new rewards would have written other completions.

    Examples: `workbench replay latest --task tasks/mine/task.py`, `workbench replay demo --task arithmetic
    --weight length_reward=0 --out changed.parquet`, `workbench replay demo --task arithmetic --aggregation
    normalize_then_sum`.
    """
    from workbench.replaying import replay as again
    from workbench.views.replay import replay_view
    from workbench.views.terminal import progress

    with progress("completions") as bar:
        found = again(
            _opened(run, "recorded"), task, _weights(weight), aggregation=aggregation, out=out, limit=limit, progress=bar
        )
    return Result(found.found(), replay_view(found, charts=False))


@command("eval")
def eval_(
    run: Annotated[str, arg("A run by name or path; latest: the last that ended with an adapter.")] = "latest",
    held_out: Annotated[int, opt("Held-out prompts, at most.", min=2)] = 200,
    samples: Annotated[int, opt("Completions of each; 16 or more tell whether it was taught or sharpened.", min=1)] = 4,
    greedy: Annotated[bool, opt("Take the likeliest tokens, too: one completion a prompt.", "--greedy")] = False,
    checkpoints: Annotated[str, opt("Steps of checkpoints to measure besides, as 20,40; best; or all.")] = "",
    seed: Annotated[int, opt("The same seed gives the same completions on the same machine.")] = 0,
) -> Result:
    """Is a run's policy better than its base? Both sampled on the same held-out prompts, as in training, and compared.

    Says the gain with its 95 % interval, and how many more prompts it would take where that contains 0; pass@k, majority vote and
    best of n; and whether the run taught (it solves prompts that its base does not solve in n tries) or sharpened (it solves
    at once what its base solves sometimes). Leaves evaluation.json and, in evaluation.parquet, every completion; what is there
    already is not measured again.

    Exits with 1 unless the gain's interval lies above 0.

    Examples: `workbench eval latest --held-out 80 --samples 16 --greedy`, `workbench eval demo --checkpoints all --json`.
    """
    from workbench.inspection.evaluation import evaluate
    from workbench.views.terminal import progress

    steps = checkpoints if checkpoints == "all" else [step for step in checkpoints.split(",") if step]
    how = {"held_out": held_out, "samples": samples, "seed": seed, "greedy": greedy, "checkpoints": steps}
    opened = _opened(run, "trained")
    with progress("prompts sampled", "eval") as bar:
        found = evaluate(opened, **how, progress=bar)
    return Result(found.found, found, int(not found.found["gain"]["low"] > 0))


@command()
def report(
    run: Annotated[str, arg("A run, by name or path.")] = "latest",
    markdown: Annotated[bool, opt("Text without pictures, report.md, for a pull request or an issue.", "--markdown")] = False,
    answer_column: Annotated[
        str | None, opt("The dataset column with the right answer, where its name does not tell.", "--answer-column")
    ] = None,
    eval_logs: Annotated[
        bool, opt("What `workbench eval` measured, as logs for inspect_ai's viewer, instead.", "--eval-logs")
    ] = False,
    out: Annotated[Path | None, opt("The file (or folder of logs) to write; by default in the run's folder.")] = None,
) -> Result:
    """One page on a run: is it better, was it taught or sharpened, is it healthy, what was fixed and what broke.

    Made from the record and from the last `workbench eval`; no model is loaded. The page holds all that it shows: no script,
    nothing fetched from a network, so it can be mailed or kept beside the run.

    Examples: `workbench report`, `workbench report demo --markdown --out demo.md`.
    """
    from workbench.reporting import write_report
    from workbench.workspace import shown

    if eval_logs:
        from workbench.inspection.eval_logs import write_eval_log

        files = write_eval_log(_opened(run, "recorded"), out)
        written = "\n".join(f"written: {shown(file)}" for file in files)
        return Result(
            {"eval_logs": [str(file) for file in files]}, f"{written}\nlook: inspect view --log-dir {shown(files[0].parent)}"
        )
    file = write_report(_opened(run, "recorded"), out, markdown=markdown, answer_column=answer_column)
    return Result({"report": str(file)}, f"written: {shown(file)}")


@command()
def doctor() -> Result:
    """Report versions, device, and what works here (4-bit, bf16, vLLM, widgets), with a remedy for what does not.

    Exits with 1 if something that training needs does not work.
    """
    from workbench.doctor import examine, tables

    found = examine()
    broken = any(each["needed"] and not each["works"] for each in found["findings"])
    return Result(found, tables(found), int(broken))


@command(aborted="the formats that are whole stay in export/, nothing half-made does; the same command makes the rest")
def export(
    run: Annotated[str, arg("A run by name or path; latest: the last that ended with an adapter.")] = "latest",
    formats: Annotated[Words, opt("adapter, merged_16bit, merged_4bit, gguf, or one of the three; repeat.", "--format")] = None,
    into: Annotated[str, opt("Merge into base (16 bits), or dequantised (4-bit weights in 16 bits); auto: by risk.")] = "auto",
    overwrite: Annotated[bool, opt("Replace another export that is there.", "--overwrite")] = False,
    best: Annotated[
        bool | None, opt("From here on the run's adapter is the best that eval_every kept; or the final one.")
    ] = None,
    push: Annotated[str | None, opt("OWNER/NAME: upload it to the hub, private; wants one --format, proven.")] = None,
) -> Result:
    """Leave with the model: write a run's policy into runs/RUN/export/FORMAT, each format whole or not at all.

    adapter: for PEFT and vLLM, beside the 16-bit base. merged_16bit: a model of its own, for transformers, vLLM and MLX.
    merged_4bit: the same in NF4. gguf: for llama.cpp and Ollama, as gguf_f16, gguf_q8_0 and gguf_q4_k_m. Without --format:
    adapter and merged_16bit. An export of the same adapter that is there already is kept.

    Exits with 1 if it is refused: another export in its place, no room, a tool that is missing, not proven.

    Examples: `workbench export`, `workbench export demo --format gguf_q4_k_m --push me/sums`.
    """
    from workbench.errors import ExportError
    from workbench.exporting import making, pushing
    from workbench.views.terminal import progress
    from workbench.workspace import find

    asked = formats or ["adapter", "merged_16bit"]
    if of := next((up.name for up in find(run).parents[:2] if (up / "manifest.json").is_file()), ""):
        remedy = f"`workbench export {of}`; `workbench prove {run}` proves what is there"
        raise ExportError(f"{run}: a folder of run {of}", rule="what is exported is a run", remedy=remedy)
    if making.in_order(asked, into) and push and (len(asked) > 1 or asked == ["gguf"]):
        rule, remedy = "a repository holds one artefact", "give one --format with --push"
        raise ExportError(f"--push with {', '.join(asked)}", rule=rule, remedy=remedy)
    opened = _opened(run, "trained")
    best is None or opened.use_best(best)
    try:
        with progress("artefacts", "export") as bar:
            made = making.export(opened, asked, into=into, overwrite=overwrite, progress=bar)
        address = pushing.push(made[asked[0]], push) if push else None
    except ExportError as error:
        found = {"refused": error.value, "rule": error.rule, "remedy": _flags(error.remedy)}
        return Result(found, f"refused: {_flags(str(error))}", 1)
    return Result(made.found() | {"pushed": address}, f"{made}\npushed to {address}" if address else made)


@command(aborted="what was proven keeps its proof.json, and nothing half-made stays; the same command begins again")
def prove(
    artefact: Annotated[str, arg("An artefact's folder; or a run by name or path: all that it was exported as.")],
    run: Annotated[str | None, opt("The run that it was made of, where its folder does not tell.")] = None,
    prompts: Annotated[int, opt("Held-out prompts; with fewer than 10, damage cannot be told from chance.", min=2)] = 64,
    task: Annotated[str | None, opt("The run's task, where the one that it was begun with cannot be loaded.")] = None,
) -> Result:
    """Is an export the policy that was trained? Loaded back in a process of its own, and held against the live policy.

    From cheap to dear: sums of its files; tensors, layer by layer; token ids; then what it writes: the probabilities of
    completions that the policy sampled, and greedy answers to held-out prompts, rewarded as in training, with intervals.
    Quantised formats are measured, and fail only where they equal the base, do not end, or cost more than 5 points beyond
    chance. What cannot be told here is named, and no failure. Leaves proof.json beside the artefact.

    Exits with 1 if one fails; the cause and the remedy are in the text.

    Examples: `workbench prove latest`, `workbench prove runs/demo/export/gguf_q4_k_m --json`.
    """
    from workbench.exporting.checks import Proofs
    from workbench.exporting.proving import prove as held_against
    from workbench.run.directory import open_run
    from workbench.task import load_task
    from workbench.views.terminal import Bar

    own = None if run is None else open_run(run)
    with Bar("") as bar:

        def begun(name: str) -> Callable[[int, int], None]:
            row = bar.add_task(name, total=None, numbers="")
            if not bar.console.is_terminal:
                print(f"proving {name}", file=sys.stderr, flush=True)
            return lambda done, total: bar.update(row, completed=done, total=total or None)

        found = held_against(artefact, run=own, prompts=prompts, task=task and load_task(task), progress=begun)
    proofs = found if isinstance(found, Proofs) else Proofs([found])
    return Result({"passed": proofs.passed, "proofs": proofs}, proofs, int(not proofs.passed))


@command()
def ask(
    artefact: Annotated[str, arg("An artefact's folder; or a run by name or path: of its exports, merged_16bit goes first.")],
    question: Annotated[str, arg("What to ask, in quotes.")],
    system: Annotated[str | None, opt("System prompt, instead of the one that the run was trained under; '': none.")] = None,
    temperature: Annotated[float, opt("0 takes the likeliest token every time.", min=0)] = 0.0,
    base: Annotated[bool, opt("Ask the base, too.", "--base")] = False,
) -> Result:
    """Ask an exported model one question. It answers from the artefact's own files; `wb.chat` is the same in a notebook.

    Example: `workbench ask latest "What is 15 + 27?" --base`.
    """
    from workbench.exporting.artefacts import meant
    from workbench.exporting.chat import Conversation

    folders = meant(artefact)[1]
    folder = next((each for each in folders if each.name == "merged_16bit"), folders[0])
    answers = Conversation(folder, system).reply(question, temperature, base).answers
    said = (f"[{who}: {one.length_tokens} tokens, {one.ended}]\n{one.text}" for who, one in answers.items())
    return Result({"artefact": folder, "question": question, "answers": answers}, "\n".join(said))


@command()
def verify(
    path: Annotated[str, arg("An artefact's folder, its passport.json; or a run by name or path: all its artefacts.")],
) -> Result:
    """Is an artefact still what was exported? Every byte of its files against its passport; the run, if it is at hand.

    Exits with 1 if something differs.

    Examples: `workbench verify demo`, `workbench verify runs/demo/export/merged_16bit`.
    """
    from workbench.exporting.passport import verify as compared

    artefacts = compared(path)
    passed = all(each.passed for each in artefacts)
    return Result({"passed": passed, "artefacts": artefacts}, "\n".join(map(str, artefacts)), int(not passed))


@app.command()
def lab(
    port: Annotated[int, opt("Port of the JupyterLab server.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, opt("Open a browser.")] = True,
) -> None:
    """Open JupyterLab on the five notebooks.

    Start with 01_dataset and go on in order; each notebook says what it needs and what it leaves. Stop with Ctrl-C.
    """
    from workbench.demo import notebooks_to_edit

    _open_lab(notebooks_to_edit() / "01_dataset.ipynb", port, browser)


@command()
def explain(
    term: Annotated[str | None, arg("A metric, a setting or a word, such as clip_ratio or 'dead group'.")] = None,
    trl: Annotated[str | None, opt("Explain it for this version of TRL, as of an older guide.")] = None,
) -> Result:
    """What does this word mean? Meaning, unit, healthy range, and what changed in which version. Without a term: the list.

    Examples: `workbench explain clip_ratio`, `workbench explain reward_std --trl 0.26`.
    """
    from workbench.teaching import glossary

    if term is not None:
        return Result(found := glossary.explain(term, trl), found)
    terms = glossary.terms()
    return Result(terms, "\n".join(f"{kind}: {', '.join(names)}" for kind, names in terms.items()))


@command()
def lesson(
    name: Annotated[str | None, arg("A lesson's name or number; none: list them, with what is passed.")] = None,
    again: Annotated[bool, opt("Open a fresh copy; yours stays.", "--again")] = False,
    solved: Annotated[bool, opt("Write a copy with every blank filled in, for a teacher, and open nothing.", "--solved")] = False,
    port: Annotated[int, opt("Port of the JupyterLab server.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, opt("Open a browser.")] = True,
) -> Result:
    """Open a lesson: a notebook, copied into lessons/ of the workspace, where your own copy is never written over.

    Needs no GPU and no network. What you pass is kept in lessons/progress.jsonl.

    Examples: `workbench lesson`, `workbench lesson grpo_by_hand`, `workbench lesson broken_runs --solved`.
    """
    from workbench.teaching import lessons
    from workbench.views.tables import Table
    from workbench.workspace import shown

    if name is not None:
        copy = lessons.copy_of(name, again, solved)
        if not solved:
            _open_lab(copy, port, browser)
        return Result({"copy": str(copy)}, f"solved copy: {shown(copy)}")
    found, rows = lessons.lessons(), []
    for each in found:
        filled = f"{len(each['passed'])} of {each['exercises']}" if each["exercises"] else "-"
        minutes = "not measured" if each["minutes"] is None else each["minutes"]
        rows.append([each["lesson"], each["title"], minutes, filled, each["last"] or "-"])
    return Result(found, Table(["lesson", "title", "minutes to run", "passed", "last"], rows))


def _open_lab(notebook: Path, port: int, browser: bool) -> None:
    from workbench.workspace import shown

    if importlib.util.find_spec("jupyterlab") is None:
        value, rule = "JupyterLab is not installed", "`workbench lab` and `lesson` start the JupyterLab of this environment"
        remedy = (
            f"uv pip install jupyterlab; or open {shown(notebook)} in the Jupyter that you have, with this environment's kernel"
        )
        raise WorkbenchError(value, rule=rule, remedy=remedy)
    start = [sys.executable, "-m", "jupyterlab", str(notebook), f"--port={port}"]
    start += [f"--ServerApp.root_dir={notebook.parents[1]}"] + ([] if browser else ["--no-browser"])
    start += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    os.execv(start[0], start)


def _weights(said: list[str] | None) -> dict[str, float]:
    """`["length_reward=0.5", ...]` as numbers by name."""
    weights = {}
    for text in said or []:
        name, _, number = text.rpartition("=")
        with contextlib.suppress(ValueError):
            if name.strip() and math.isfinite(float(number)):
                weights[name.strip()] = float(number)
                continue
        raise RecipeError(f"--weight {text}", rule="a weight is name=number", remedy="for example --weight length_reward=0.5")
    return weights


def _opened(run: str, latest: str) -> Any:
    """The run, which is named where the user did not."""
    from workbench.run.directory import open_run

    opened = open_run(run, latest=latest)
    if run == "latest":
        print(opened.describe(), file=sys.stderr)
    return opened


def _flags(text: str) -> str:
    """A remedy in the command line's words: `overwrite=True` is --overwrite there, `into="base"` --into base."""
    return re.sub(r'\b(into|overwrite)=(?:True|"(\w+)")', lambda said: f"--{said[1]} {said[2] or ''}".rstrip(), text)


def _json(found: Any) -> str:
    """One JSON object in ASCII: json leaves DEL as it is, and writes NaN, which is not JSON."""
    from workbench.workspace import to_json

    return json.dumps(to_json(found), allow_nan=False).replace("\x7f", "\\u007f")


def main() -> None:
    """Entry point: an error of the workbench's own is three lines and exit code 2, not a traceback."""
    if not sys.stderr.isatty():  # libraries' bars would fill a file; read when tqdm is imported
        os.environ.setdefault("TQDM_DISABLE", "1")
    guard_output()
    try:
        app()
    except Exception as met:
        from workbench.processes import rank
        from workbench.workspace import disk_error

        error = met if isinstance(met, WorkbenchError) else disk_error(met)
        if isinstance(met, MemoryError) or re.search("OutOfMemory|could not create a primitive", f"{type(met).__name__} {met}"):
            remedy = "end other programs, or use smaller batches; what is on disk is whole, and `workbench continue` goes on"
            error = WorkbenchError(f"{type(met).__name__}: {met}"[:500], rule="a command fits into memory", remedy=remedy)
        if error is None:
            raise
        lines = [f"{type(error).__name__}: {_flags(str(error))}", *getattr(met, "__notes__", ())]
        print(f"process {rank()}: " * (rank() > 0) + "\n".join(lines), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
