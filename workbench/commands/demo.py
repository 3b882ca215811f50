"""The demonstration: the five notebooks executed in order."""

from __future__ import annotations

import contextlib
import functools
import shlex
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from workbench.base.errors import RunError, nearest
from workbench.base.extras import need_train
from workbench.base.kinds import Fields
from workbench.base.notebook import NOTEBOOKS, execute, free, notebooks_folder
from workbench.base.workspace import made, replace_file, resolve, shown
from workbench.base.yaml_text import packaged
from workbench.data.prompts import question_text
from workbench.run.directory import check_name, open_run
from workbench.tiny import named as policies
from workbench.training.plan.precision import fast_bf16

_SHOWN, _WIDTH = 3, 72  # held-out prompts that the result shows answered; characters of a column


def settings_of(policy: str) -> dict[str, Any]:
    """What a demonstration changes, by notebook, and its `task.py`, from `demos.yaml`.

    RunError for a policy that has none; PolicyError for one that is not installed, MissingError
    where the extra train is not.
    """
    demos = packaged(Path(__file__).with_name("demos.yaml"))
    if policy not in demos:
        rule = f"the demonstration has settings for {' and '.join(demos)}"
        otherwise = "train another with `workbench train`, or `workbench notebook 03 --set`"
        raise RunError(
            f"demo: policy {policy!r}", rule=rule, remedy=nearest(policy, demos, otherwise)
        )
    policies.folder_of(policy)
    need_train()
    settings = demos[policy]
    if policy != "tiny" and fast_bf16():
        settings["03_train"]["loading"]["dtype"] = "bfloat16"
    return settings


def run_notebooks(
    name: str = "demo",
    *,
    policy: str = "tiny",
    seed: int = 0,
    parameters: dict[str, Fields] | None = None,
    on_cell: Callable[[str, int, int], None] = lambda *_: None,
    on_step: Callable[[int], None] = lambda steps: None,
) -> Fields:
    """Execute the five notebooks in order, all their files under `runs/<name>/`.

    Args:
        name: of the run; `name-2` and so on if there is one of that name.
        policy: whose settings of `demos.yaml` to take: "tiny" or "smollm2".
        parameters: more of them, by notebook ("03_train": {"max_steps": 3}).
        on_cell: called with (notebook, cells done, cells in all).
        on_step: called with the steps that 03 has trained so far, every second from its first, from
            another thread.

    Returns what `workbench demo --json` prints: {"before", "after", "gain", "content", "verdict",
    "steps", "minutes", "run"}.
    """
    began = time.monotonic()
    check_name(name)
    settings = settings_of(policy)
    folder = free(resolve("runs") / name)
    made(folder)
    task, run_name = f"runs/{folder.name}/task", f"runs/{folder.name}"
    shared = {
        "01_dataset": {"task_dir": task, "seed": seed},
        "02_rewards": {"task_dir": task},
        "03_train": {"task_dir": task, "run_name": folder.name, "seed": seed},
        "04_inspect": {"run_name": run_name, "seed": seed},
        "05_export": {"run_name": run_name},
    }
    if text := settings.get("task.py"):
        with replace_file(made(folder / "task") / "task.py") as beside:
            beside.write_text(text, encoding="utf-8", newline="")
    minutes: dict[str, float] = {}
    with _following(folder / "metrics.jsonl", on_step):
        for stem in NOTEBOOKS:
            before = time.monotonic()
            execute(
                notebooks_folder() / f"{stem}.ipynb",
                folder / "notebooks" / f"{stem}.ipynb",
                {**shared[stem], **settings.get(stem, {}), **(parameters or {}).get(stem, {})},
                functools.partial(on_cell, stem),
            )
            minutes[stem] = (time.monotonic() - before) / 60
    run = open_run(folder)
    measured = run.read_json("evaluation.json")
    result: Fields = {
        when: {key: measured[when][key] for key in ("correct", "format")}
        for when in ("before", "after")
    }
    result |= {key: measured.get(key) for key in ("gain", "content", "verdict")}
    result |= {
        "steps": run.result()["steps"],
        "minutes": (time.monotonic() - began) / 60,
        "run": str(run.path),
    }
    run.write_json("demo.json", {**result, "seed": seed, "minutes_by_notebook": minutes})
    return result


def result_table(result: Fields) -> str:
    """The result of `run_notebooks`, for people."""
    from workbench.inspection.evaluation import read_evaluation
    from workbench.inspection.measured import content_in_words, gain_in_words
    from workbench.views.tables import Table, one_line

    run, evaluation = shown(result["run"]), read_evaluation(open_run(result["run"]))
    gain = gain_in_words(evaluation.found)
    correct, strict = (
        f"{result['before'][key]:.0%} -> {result['after'][key]:.0%}"
        for key in ("correct", "format")
    )
    rows = [
        ("correct, in strict format", correct),
        ("gain", gain.removeprefix("gain ")),
        ("strict format", strict),
        ("correct, of those in it", content_in_words(evaluation.found)),
        ("verdict", result["verdict"]["word"]),
        ("steps", result["steps"]),
        ("minutes", f"{result['minutes']:.1f}"),
        ("run", run),
        ("report", f"{run}/report.html"),
        ("notebooks", f"{run}/notebooks/"),
        ("merged model", f"{run}/export/merged_16bit/"),
    ]
    asked = [question_text(prompt) for prompt in evaluation.prompts[:_SHOWN]]
    firsts = zip(asked, evaluation.before.completions, evaluation.after.completions)
    answered = [
        # of a question, its last paragraph: what is asked of all stands before it
        [one_line(text, _WIDTH) for text in (question.split("\n\n")[-1], base[0], trained[0])]
        for question, base, trained in firsts
    ]
    quoted = shlex.quote(" ".join(asked[0].split()))
    return f"""{Table(["held-out prompts", "before -> after training"], filter(all, rows))}

{Table(["asked", "base", "trained"], answered, "three of them, and the first answer to each")}

to ask the trained model and its base: workbench ask {run} {quoted} --base"""


@contextlib.contextmanager
def _following(metrics: Path, on_step: Callable[[int], None]) -> Generator[None]:
    # The cell that trains is one long cell; its progress is in the run's own file.
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            if metrics.is_file():
                on_step(metrics.read_bytes().count(b"\n"))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
