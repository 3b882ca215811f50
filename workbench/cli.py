"""The same stages without a notebook. A command and a notebook cell call the same functions.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench import __version__
from workbench.errors import WorkbenchError
from workbench.printable import guard_output

app = typer.Typer(
    name="workbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train language models with GRPO on one GPU, and see why a run does or does not learn.\n\n"
    "Start with `workbench demo`: it runs the five notebooks on a small policy that travels with the package, "
    "on any machine, in minutes. Then `workbench lab` opens them for you.",
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE over the recipe: a dotted field, or a GRPOConfig name; may be repeated."),
]
Steps = Annotated[int | None, typer.Option(help="Train this many steps instead of the recipe's.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, for scripts.")]
TemplateKwargs = Annotated[
    str | None, typer.Option(help="With --policy, as in the recipe's grpo (JSON): '{\"enable_thinking\": false}'.")
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def demo(
    name: Annotated[
        str, typer.Option(help="Name of the run; its folder is runs/NAME (NAME-2, ... if it exists).")
    ] = "demo",
    seed: Annotated[int, typer.Option(help="The same seed gives the same result on the same machine.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Train this many steps instead of notebook 03's own number.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute the five notebooks in order in real kernels, and report what the training bought.

    The executed notebooks and a report (HTML) stay under runs/NAME. Needs no GPU and no network.
    """
    from workbench.demo import NOTEBOOKS, run_notebooks
    from workbench.run.directory import check_name
    from workbench.views.terminal import progress_bar

    check_name(name)

    parameters = {"03_train": {"max_steps": steps}} if steps else None
    with progress_bar("cells", numbers=True) as bar:
        tasks = {stem: bar.add_task(stem, total=None, start=False, numbers="") for stem in NOTEBOOKS}

        def on_cell(stem: str, done: int, total: int) -> None:
            bar.start_task(tasks[stem])
            bar.update(tasks[stem], completed=done, total=total, numbers="")
            if not bar.console.is_terminal and done == total:
                print(f"{stem}: {total} cells", file=sys.stderr, flush=True)

        def on_step(steps: int) -> None:
            bar.update(tasks["03_train"], numbers=f"{steps} steps trained")

        result = run_notebooks(name, seed=seed, parameters=parameters, on_cell=on_cell, on_step=on_step)
    print(_json(result) if as_json else _demo_table(result))


def _demo_table(result: dict[str, Any]) -> str:
    from workbench.inspection.evaluation import gain_in_words
    from workbench.run.directory import open_run
    from workbench.views.tables import Table
    from workbench.workspace import shown

    before, after = result["before"], result["after"]
    gain = gain_in_words(open_run(result["run"]).read_json("evaluation.json"))
    rows = [
        ["correct, in strict format", f"{before['correct']:.0%} -> {after['correct']:.0%}"],
        ["", gain.removeprefix("gain ")],
        ["strict format", f"{before['format']:.0%} -> {after['format']:.0%}"],
        ["steps", result["steps"]],
        ["minutes", f"{result['minutes']:.1f}"],
        ["run", shown(result["run"])],
        ["report", shown(f"{result['run']}/report.html")],
        ["notebooks", shown(f"{result['run']}/notebooks/")],
        ["merged model", shown(f"{result['run']}/export/merged_16bit/")],
    ]
    return str(Table(["held-out prompts", "before -> after training"], rows))


@app.command()
def notebook(
    which: Annotated[
        str, typer.Argument(help="One of the five, as 03, train or 03_train; or the path of an .ipynb file.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE: one of its parameters; may be given several times.", metavar="NAME=VALUE"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the executed copy here, instead of a new file in runs/notebooks/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one notebook from a terminal, with your parameters, in a fresh kernel.

    A parameter is a line of the notebook's first code cell; an unknown one is an error that names the nearest right one.
    Values are Python literals (5, 1e-4, True, None, [1, 2]), and text where text stands now. The notebook itself is not
    changed: the executed copy, with all its outputs, is written also when a cell fails. Exits with 2 if one does.

    Examples: `workbench notebook 03 --set max_steps=5 --set run_name=short`,
    `workbench notebook inspect --set run_name=short --out short.ipynb`.
    """
    from workbench.demo import find_notebook, run_notebook
    from workbench.views.terminal import progress_bar
    from workbench.workspace import shown

    stem = find_notebook(which).stem
    with progress_bar("cells") as bar:
        task = bar.add_task(stem, total=None)

        def on_cell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if not bar.console.is_terminal:
                print(f"{stem}: cell {done} of {total}", file=sys.stderr, flush=True)

        found = run_notebook(which, set_ or [], out, on_cell)
    print(_json(found) if as_json else f"{found['minutes']:.1f} minutes; executed copy: {shown(found['out'])}")


@app.command()
def plan(
    source: Annotated[
        str,
        typer.Argument(
            help="A recipe (.yaml), a preset's name, a training script (.py; it is read, never run), or - for a script on "
            "standard input."
        ),
    ],
    vram: Annotated[
        float | None, typer.Option(help="GPU memory in GB to plan for, instead of that of this machine's card.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the recipe under today's names here (YAML).")] = None,
    steps: Steps = None,
    said: Set = None,
    as_json: AsJson = False,
) -> None:
    """What would this run do, and does it fit? Settings asked, changed and in force, the batch in words, GPU memory.

    The policy is not loaded. Old names are translated, each with a line; unknown ones, contradictions and batches without
    whole groups are errors (exit code 2); exits with 1 if it does not fit. "In force" is what this machine would do; without
    a GPU here, memory is estimated as on one. Presets: blog, blog_math, course, course_vllm, cpu, gemma, gpu_24gb, gpu_80gb,
    large_gpu, small_gpu, t4.

    Examples: `workbench plan small_gpu --vram 16`, `workbench plan train.py --out recipe.yaml`,
    `workbench plan recipe.yaml --set learning_rate=1e-5`.
    """
    from workbench.training.prepare import plan as plan_run

    text = sys.stdin.read() + "\n" if source == "-" else source
    with _output_to_stderr():
        found = plan_run(text, vram_gb=vram, said=said or [], steps=steps)
    if out:
        found.recipe.save(out)
    print(_json(found.found()) if as_json else found)
    if found.memory is not None and found.memory.fits is False:
        from workbench.memory import cheapest

        if not as_json:
            print("\nto make it fit, cheapest first (estimates):", *cheapest(found.memory), sep="\n  - ")
        raise typer.Exit(1)


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(help="Recipe file (YAML) or a preset's name. workbench/tiny/recipe.yaml is one to start from."),
    ],
    run_name: Annotated[str | None, typer.Option(help="Name of the run, instead of the recipe's.")] = None,
    changes_of: Annotated[
        str | None,
        typer.Option(help="A recorded run: what was changed while it trained is changed again after the same steps."),
    ] = None,
    runs: Annotated[str, typer.Option(help="Folder for the run's folder.")] = "runs",
    steps: Steps = None,
    said: Set = None,
    as_json: AsJson = False,
) -> None:
    """Train as a recipe says, without a notebook. Ctrl-C stops after the step and saves; a second one aborts.

    While it trains, `workbench watch` shows it and `workbench control` steers it, from any other terminal. A run that was
    stopped or killed goes on with `workbench continue`.

    Example: `workbench train recipe.yaml --steps 20 --set learning_rate=1e-5 --set policy.load_in_4bit=false`.
    """
    from workbench.recipe import Recipe
    from workbench.run.directory import open_run
    from workbench.training import plan
    from workbench.training.presets import find_recipe
    from workbench.training.trainer import train as run_training
    from workbench.views.terminal import TerminalProgress

    asked = plan.overridden(Recipe.load(find_recipe(recipe)), said or [], steps)
    if run_name:
        asked = asked.model_copy(update={"run_name": run_name})
    again = open_run(changes_of, runs) if changes_of else None
    with _output_to_stderr():
        run = run_training(asked, watchers=[TerminalProgress()], runs=runs, changes_of=again)
    _tell_result(run, as_json)


@app.command(name="continue")
def continue_(
    run: Annotated[str, typer.Argument(help="A run by name or path; latest: the last that does not train.")] = "latest",
    steps: Annotated[int | None, typer.Option(help="Train so many steps more than its recipe says.", min=1)] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="It was begun on another machine, which is gone (a lost Colab runtime).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, failed or was killed, from its latest checkpoint, in its own folder.

    Optimiser, schedule, random states and the order of the prompts are those of the checkpoint; on a CPU the numbers are
    those of a run that was never stopped.
    """
    from workbench.training.trainer import continue_run
    from workbench.views.terminal import TerminalProgress

    run = _named(run, "begun" if take_over else "resting")
    with _output_to_stderr():
        gone_on = continue_run(run, watchers=[TerminalProgress()], steps=steps, take_over=take_over)
    _tell_result(gone_on, as_json)


def _tell_result(run: Any, as_json: bool) -> None:
    from workbench.workspace import shown

    result = run.result()
    found = {"run": str(run.path), "adapter": str(run.adapter), **result}
    if as_json:
        print(_json(found))
    else:
        print(
            f"{result['minutes']:.1f} minutes; adapter in {shown(run.adapter)}; next: notebook 04 on {shown(run.path)}"
        )


@app.command()
def watch(
    run: Annotated[
        str, typer.Argument(help="A run by name or path; latest: the one that trains, or was begun last.")
    ] = "latest",
    once: Annotated[bool, typer.Option("--once", help="Print how it stands now, and end.")] = False,
    png: Annotated[Path | None, typer.Option(help="Write its curves as they stand now to this file.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow a run that trains in another process: its numbers, its health, what is changed. Ends when the run ends.

    Ctrl-C ends the watching, not the run. --once, --png and --json show how it stands now, and end.
    """
    from workbench.views.watch import follow, followed, snapshot, snapshot_text, write_picture

    found = followed(_named(run, "training"))
    if png is not None:
        print(f"curves written to {write_picture(found, png)}", file=sys.stderr)
    if as_json:
        print(_json(snapshot(found)))
    elif once or (png is None and found.over):
        print(snapshot_text(found))
    elif png is None:
        follow(found, every)


@app.command(context_settings={"ignore_unknown_options": True})  # a weight may be negative
def control(
    run: Annotated[str, typer.Argument(help="A run by name or path; latest: the one that trains.")],
    action: Annotated[
        str,
        typer.Argument(
            help="stop, pause, resume, checkpoint, sample, weight, mute, unmute, reload, beta or learning_rate."
        ),
    ],
    details: Annotated[
        list[str] | None,
        typer.Argument(help="FUNCTION VALUE for weight, FUNCTION for mute and unmute, VALUE for beta, learning_rate."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the trainer's answer; 0: do not wait.", min=0)
    ] = 60.0,
    force: Annotated[
        bool, typer.Option("--force", help="Also take a learning rate or beta over 100 times the one in force.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a run that trains for something; it is applied at the end of the step in flight, and recorded in events.jsonl.

    Exits with 1 if the run refuses, with 3 if it has not answered in time.

    Examples: `workbench control latest stop`, `workbench control latest weight format_reward 0.5`.
    """
    from workbench.views.watch import answered
    from workbench.views.watch import control as ask

    found = ask(_named(run, "training"), action, details or [], timeout_s=timeout, force=force)
    print(_json(found) if as_json else answered(found, timeout))
    if not found["applied"]:
        raise typer.Exit(3 if found["applied"] is None and timeout else 1 if found["applied"] is False else 0)


@app.command()
def check(
    source: Annotated[
        str,
        typer.Argument(
            help="A .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder, owner/name, or a name that ships."
        ),
    ],
    prompt: Annotated[str | None, typer.Option(help="Column that holds the prompt, if it is not called so.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="Column that holds the right answer; assistant: the assistant's last turn; none: no answers."
        ),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Subset (configuration) of a hub dataset.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of a hub dataset or folder; train if not said.")] = None,
    answer_after: Annotated[
        str, typer.Option(help="Mark that the answer stands after; auto: ####, if most answers end so; none: no mark.")
    ] = "auto",
    numbers: Annotated[bool, typer.Option(help="Leave out rows whose answer is no number.")] = False,
    other: Annotated[
        str | None, typer.Option(help="Rows of the other split: prompts that stand there too are left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows that were kept here, as JSON lines.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Measure prompt lengths with this policy's template and tokenizer: tiny, owner/name, a folder."
        ),
    ] = None,
    chat_template_kwargs: TemplateKwargs = None,
    system: Annotated[
        str, typer.Option(help="System message for prompts that are text: tags, think, mark, none, or the text itself.")
    ] = "none",
    as_json: AsJson = False,
) -> None:
    """Check a dataset: every row is kept, repaired by a stated rule, or listed with its reason. Nothing is loaded on a GPU.

    Names like question or ground_truth are used for the prompt and the answer if there is no doubt, and the report says so;
    --prompt and --answer choose. Exits with 1 if no row could be kept.

    Examples: `workbench check train.jsonl`, `workbench check questions.csv --answer expert_answer --out tasks/mine/train.jsonl`,
    `workbench check openai/gsm8k --numbers --policy tiny --system tags`.
    """
    from workbench.checking import check_source

    with _output_to_stderr():
        found = check_source(
            source,
            prompt_column=prompt,
            answer_column=answer,
            answer_after=None if answer_after == "none" else answer_after,
            numbers=numbers,
            subset=subset,
            split=split,
            other=other,
            out=out,
            policy=policy,
            chat_template_kwargs=chat_template_kwargs,
            system=system,
        )
    print(_json(found.found()) if as_json else found)
    if not found.report.kept_rows:
        raise typer.Exit(1)


@app.command()
def probe(
    task: Annotated[str, typer.Argument(help="A task file, or the name of a task that ships.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Send the honest answer through this policy's tokenizer and template: tiny, owner/name, a folder."
        ),
    ] = None,
    chat_template_kwargs: TemplateKwargs = None,
    prompts: Annotated[int, typer.Option(help="Prompts to try, spread over the task's.", min=1)] = 6,
    weight: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: another weight for a function; may be given several times.")
    ] = None,
    max_completion_length: Annotated[int, typer.Option(help="Tokens that a completion may have.", min=1)] = 512,
    cases: Annotated[
        str | None, typer.Option(help="File of golden cases; if not said, cases.jsonl beside the task file.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="Seconds for one function and all completions; a judge may need minutes.", min=0.1)
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Can these rewards pay, and what do cheats earn? Seconds on a CPU, before any training.

    From the task's own prompts it makes the completion that an honest policy would write, and some twenty that a policy
    would love to get away with (empty tags, several answers, padding, refusal, cut before the closing tag, ...), and
    scores them all. It names the function that cannot pay, with the line that nothing reaches, and the cheat that earns
    as much as an honest answer. Golden cases (completion -> expected scores) are checked too.

    Where the honest completion cannot be read off the prompt, the task says it: Task(ideal=lambda row: ...). Cheats of your
    own: Task(probes={name: text or function of the row}).

    Exits with 1 if a reward cannot pay or fails, if a cheat earns at least what an honest answer earns, or if a golden
    case does not hold.

    Examples: `workbench probe arithmetic --policy tiny`, `workbench probe tasks/mine/task.py --json`.
    """
    from workbench.probing import probe_task
    from workbench.replaying.command import read_weights
    from workbench.views.audit import Report

    with _output_to_stderr():
        found = probe_task(
            task,
            policy=policy,
            chat_template_kwargs=chat_template_kwargs,
            rows=prompts,
            weights=read_weights(weight or []),
            max_completion_length=max_completion_length,
            cases=cases,
            deadline_s=deadline,
        )
    print(_json(found.found()) if as_json else Report(found))
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="A run by name or path; latest: the last that recorded completions.")],
    task: Annotated[str, typer.Option(help="The edited task: a task file, or the name of a task that ships.")],
    weight: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: another weight for a function; may be given several times.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write old and new advantage of every completion here, side by side (Parquet).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Stop once this many completions are replayed, from the first step on.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a run's recorded completions anew with an edited task: which advantages would have been others?

    Tells which advantages change sign, which dead groups come alive, how far the order within groups is kept, and which
    function now decides, with the reward hashes old and new. Nothing is trained, and no GPU is needed.

    It shows what the gradients of these batches would have favoured, not what a new run would reach: a policy trained
    under the new rewards would have written other completions.

    Examples: `workbench replay latest --task tasks/mine/task.py`, `workbench replay demo --task arithmetic
    --weight length_reward=0 --out changed.parquet`.
    """
    from workbench.replaying.command import read_weights, replay_run
    from workbench.views.groups import replay_tables

    run = _named(run, "recorded")
    with _output_to_stderr():
        found = replay_run(run, task, weights=read_weights(weight or []), out=out, limit=limit)
    if as_json:
        print(_json(found.found()))
    else:
        print("\n\n".join(map(str, [*replay_tables(found), found])))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Report versions, device, and what works here (4-bit, bf16, vLLM, widgets), with a remedy for what does not.

    Exits with 1 if something that training needs does not work.
    """
    from workbench.doctor import examine

    with _output_to_stderr():
        found = examine()
    if as_json:
        print(_json(found))
    else:
        from workbench.views.tables import Table

        print(
            Table(["library", "version"], [[key, value or "not installed"] for key, value in found["versions"].items()])
        )
        print()
        rows = [
            [finding["name"], "yes" if finding["works"] else "no", finding["detail"], finding["remedy"]]
            for finding in found["findings"]
        ]
        print(Table(["", "works", "found", "what to do"], rows))
    if any(finding["needed"] and not finding["works"] for finding in found["findings"]):
        raise typer.Exit(1)


@app.command()
def lab(
    port: Annotated[int, typer.Option(help="Port of the JupyterLab server.", min=1, max=65535)] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Open JupyterLab on the five notebooks.

    Start with 01_dataset and go on in order; each notebook says what it needs and what it leaves. Stop with Ctrl-C.
    """
    import os
    from importlib.util import find_spec

    from workbench.demo import notebooks_to_edit

    if find_spec("jupyterlab") is None:
        raise WorkbenchError(
            "lab: JupyterLab is not installed in this environment",
            rule="`workbench lab` starts the JupyterLab that stands beside the workbench",
            remedy="uv pip install jupyterlab; or open notebooks/ in the Jupyter that you have, with this environment's kernel",
        )
    folder = notebooks_to_edit()
    command = [sys.executable, "-m", "jupyterlab", str(folder / "01_dataset.ipynb"), f"--port={port}"]
    command += [f"--ServerApp.root_dir={folder.parent}"] + ([] if browser else ["--no-browser"])
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    os.execv(command[0], command)


def _named(run: str, latest: str) -> str:
    # Name the run that was taken, where the user did not.
    if run != "latest":
        return run
    from workbench.run.directory import open_run

    opened = open_run(latest=latest)
    print(opened.describe(), file=sys.stderr)
    return str(opened.path)


def _json(found: dict[str, Any]) -> str:
    """One JSON object in ASCII: json leaves DEL as it is, and writes NaN, which is not JSON."""
    from workbench.workspace import to_json

    return json.dumps(to_json(found), allow_nan=False).replace("\x7f", "\\u007f")


class _output_to_stderr:
    """Standard output is for results: what libraries print while they load goes to standard error."""

    def __enter__(self) -> None:
        self._stdout, sys.stdout = sys.stdout, sys.stderr

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._stdout


def main() -> None:
    """Entry point: an error of the workbench's own is three lines and exit code 2, not a traceback."""
    guard_output()
    try:
        app()
    except WorkbenchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("aborted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
