"""docs/gallery.md: what the workbench says of a few runs, each made by the commands beside it.

``WORKBENCH_HOME=FOLDER python -m tools.gallery``: runs that the folder has are not made again.
"""

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from workbench.base.workspace import resolve
from workbench.inspection import write_report
from workbench.run.directory import RunDirectory, open_run
from workbench.views.run_view import FollowedRun

ROOT = Path(__file__).parents[1]
RECIPE = "workbench/tiny/recipe.yaml"
MEASURED = "workbench eval {run} --held-out {prompts} --samples 16"
# name -> (title, what it is, commands)
RUNS = {
    "demo": ("Sharpened", "The demo, as it ships.", ["workbench demo"]),
    "harder": (
        "Taught? Cannot be told",
        "The same policy, asked in words that it was not taught.",
        [
            f"workbench train {RECIPE} --set task=arithmetic_harder --steps 90 --run-name harder",
            MEASURED.format(run="harder", prompts=100) + " --greedy",
        ],
    ),
    "reviews": (
        "A real model",
        "SmolLM2-135M-Instruct learns to call short reviews positive or negative in one word.",
        ["workbench demo --policy smollm2 --name reviews"],
    ),
    "guess": (
        "By turns",
        "A policy that calls a tool guesses numbers, with five guesses for each.",
        [
            f"workbench train {RECIPE} --set task=guess_the_number --set policy.name=tiny_turns "
            "--set max_steps=30 --set max_completion_length=128 "
            "--set max_tool_calling_iterations=6 --run-name guess",
            MEASURED.format(run="guess", prompts=32),
        ],
    ),
    "cut": (
        "Cut",
        "The demo's recipe with a limit of 12 tokens: too few for the strict format.",
        [
            f"workbench train {RECIPE} --set max_completion_length=12 --steps 15 --run-name cut",
            MEASURED.format(run="cut", prompts=40),
        ],
    ),
    "too_fast": (
        "Too fast",
        "The demo's recipe with thirty times its learning rate.",
        [
            f"workbench train {RECIPE} --set learning_rate=0.03 --steps 30 --run-name too_fast",
            MEASURED.format(run="too_fast", prompts=40),
        ],
    ),
}
TOP = """\
# Gallery

What the workbench says of real runs on two CPU cores: the figure that the panel left, the summary of `workbench report`, and the
health verdicts. Made {date} by `python -m tools.gallery` from the commands beside them. Another CPU rounds differently and ends
a few points away. The whole report, a page with every section, is in the folder of a run after `workbench report RUN`.
"""  # noqa: E501


def made(name: str, commands: list[str]) -> RunDirectory:
    """The run; made by its commands if the workspace has none of that name."""
    if not resolve(f"runs/{name}").is_dir():
        for command in commands:
            command = command.replace(RECIPE, str(ROOT / RECIPE))
            subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True)
    return open_run(name)


def sections(run: RunDirectory) -> dict[str, str]:
    """Heading -> text of the run's report, wrapped to the width of a page."""
    text = write_report(run, markdown=True).read_text(encoding="utf-8")
    read = {}
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        lines = body.replace("```text", "").replace("```", "").strip().splitlines()
        lead = ("    " if line.startswith(" ") else "  " for line in lines)
        wrapped = (textwrap.fill(each, 100, subsequent_indent=by) for each, by in zip(lines, lead))
        read[heading] = "\n".join(wrapped)
    return read


def write(folder: Path = ROOT / "docs") -> None:
    """Write the page and its pictures."""
    runs = {name: made(name, commands) for name, (_, _, commands) in RUNS.items()}
    newest = max(event["time"] for run in runs.values() for event in run.events())
    page = TOP.format(date=newest[:10])
    for name, (title, about, commands) in RUNS.items():
        run = runs[name]
        view = FollowedRun(run)
        figure, _ = view.picture(view.line())
        (folder / "images" / f"gallery_{name}.png").write_bytes(figure)
        read = sections(run)
        shown = "\n".join(commands)
        page += f"\n## {title}\n\n{about}\n\n```sh\n{shown}\n```\n\n"
        page += f"![The run {name}](images/gallery_{name}.png)\n\n"
        page += f"```text\n{read['In short']}\n\n{read['Health']}\n```\n"
    (folder / "gallery.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()
