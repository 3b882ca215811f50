"""How a command is made of a function and its docstring: its group, its arguments and options, its
result as text or JSON, and its errors.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from workbench import __version__
from workbench.base.errors import RecipeError, WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.printable import STANDARD_OUTPUT, guard_output
from workbench.base.workspace import home_folder

# The groups of `workbench --help`, each with its commands: the stages are the notebooks'.
GROUPS: dict[str, list[str]] = {
    "Start": [],
    "01 Dataset": [],
    "02 Rewards": [],
    "03 Train": [],
    "04 Inspect": [],
    "05 Export": [],
    "Set-up and words": [],
}


class Grouped(typer.core.TyperGroup):
    """The commands by stage, each with the first line of its help, which fits a line of 80."""

    def format_commands(self, ctx: object, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                for name in names:
                    summary = (self.commands[name].help or "").partition("\n")[0]
                    formatter.write(f"  {name:{width}}  {summary}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """A stage is not a command, but someone who looks for it is told its commands."""
        for title, names in GROUPS.items():
            stage = title.lower().split()[-1]
            if args[0] not in self.commands and args[0].rstrip("s") == stage.rstrip("s"):
                ctx.fail(f"{args[0]!r} is a stage; its commands are {', '.join(names)}")
        return super().resolve_command(ctx, args)


class Described(typer.core.TyperCommand):
    """A command whose help says in words what an argument takes, and not by a type of Python's."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for each in params:
            if each.param_type_name == "argument":
                vars(each)["display_type_rich"] = lambda ctx: ""
        return params


app = typer.Typer(
    cls=Grouped,
    name="workbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help=(
        "Train language models with GRPO on one GPU, and see why a run does or does not"
        " learn.\n\nStart with `workbench demo`: it runs the five notebooks on a small policy that"
        " comes with the package, on any machine, in minutes. Then `workbench lab` opens them for"
        " you."
    ),
)


class Result(NamedTuple):
    """What a command returns: for scripts (`--json`), for people, and its exit code."""

    data: Any
    text: Any
    code: int = 0


# What a value is, by what stands for it in a command's help; any other is text.
KINDS = {"N": int, "NUMBER": float, "PATH": Path, "FOLDER": Path, "FILE": Path}
_ENTRY = re.compile(
    r"""^[ ]{4}(?P<flag>--[\w-]+)?(?P<off>[ ]/[ ]--no-[\w-]+)?[ ]?
    (?P<optional>\[)?(?P<value>[A-Z][A-Z=/]*)?\]?(?P<many>\.\.\.)?
    (?:[ ]as[ ](?P<name>\w+))?
    (?:[ ]=[ ](?P<default>\S+))?
    (?:[ ]\[(?P<least>[\d.]+?)\.\.(?P<most>\d*)\])?
    :[ ](?P<help>.*(?:\n[ ]{5,}.*)*)""",
    re.VERBOSE,
)
_JSON = "    --json as as_json: Print one JSON object on standard output, for scripts."


def parameters_of(described: str) -> list[inspect.Parameter]:
    """The arguments and options that a docstring describes, one an entry, as typer takes them:

    RUN = latest: An argument with a default; [NAME]: one that may be left out.
    --held-out N = 200 [2..]: An option, its default, and the least that it may be.
    --set KEY=VALUE... as said: One that may be repeated, and the parameter it becomes.
    --task TEXT = ...: One that has to be given.
    --greedy: A switch, off unless it has a `--no-` beside it.
    """
    return [*map(_parameter, re.findall(r"^    \S.*(?:\n {5,}.*)*", described, re.MULTILINE))]


def _parameter(described: str) -> inspect.Parameter:
    if not (entry := _ENTRY.match(described)):  # else the option would be lost
        raise ValueError(f"{described!r}: not `NAME: help` or `--flag VALUE: help`")
    flag, value, default = entry.group("flag", "value", "default")
    kind: Any = KINDS.get(value, str) if value else bool
    if default:
        default = ... if default == "..." else kind(default)
    elif not flag and not entry["optional"]:
        default = ...
    elif not value and not entry["off"]:
        default = False
    least, most = (json.loads(bound or "null") for bound in entry.group("least", "most"))
    about: Fields = {"metavar": value, "min": least, "max": most}
    about["help"] = " ".join(entry["help"].split())
    if not flag:
        option = typer.Argument(default, **about)
    elif entry["off"]:  # typer names the two itself
        option = typer.Option(default, **about)
    else:
        option = typer.Option(default, flag, **about)
    return inspect.Parameter(
        entry["name"] or (flag or value).lstrip("-").replace("-", "_").lower(),
        inspect.Parameter.KEYWORD_ONLY,
        default=option,
        annotation=list[kind] if entry["many"] else kind,
    )


def command(
    group: str, *, aborted: str = "", streams: bool = False, **settings: Any
) -> Callable[[Any], Any]:
    """Puts a function on the command line, under its own name, as its docstring describes it.

    It is called with the arguments and options by name, and returns a `Result`, which alone goes to
    standard output; with `streams` it prints what it has itself. `aborted`: what Ctrl-C leaves.
    """

    def add(function: Any) -> Any:
        if not function.__doc__:
            raise WorkbenchError(
                "Python leaves docstrings out (-OO, PYTHONOPTIMIZE=2)",
                rule="what a command takes stands in its docstring",
                remedy="start Python without it; -O does no harm",
            )
        name = function.__name__.rstrip("_")
        GROUPS[group].append(name)
        about, *described = re.split(r"\n\n(?:Args|Options):\n", inspect.getdoc(function) or "")

        def run(as_json: bool = False, **given: object) -> None:
            from workbench.base.processes import is_main

            try:
                with contextlib.redirect_stdout(sys.stderr):  # what libraries print while they load
                    result = function(**given)
            except KeyboardInterrupt:  # typer would end without a word
                print(": ".join(filter(None, ["aborted", aborted])), file=sys.stderr)
                raise typer.Exit(130) from None
            if is_main():
                print(json_text(result.data) if as_json else as_typed(str(result.text)))
            if result.code:
                raise typer.Exit(result.code)

        called = function if streams else run
        parameters = parameters_of("\n".join(described if streams else [*described, _JSON]))
        vars(called)["__signature__"] = inspect.Signature(parameters)
        app.command(name, cls=Described, help=about, **settings)(called)
        return function

    return add


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def weights_of(said: list[str] | None) -> dict[str, float]:
    """`["length_reward=0.5", ...]` as numbers by name."""
    weights = {}
    for text in said or []:
        name, _, number = text.rpartition("=")
        with contextlib.suppress(ValueError):
            if name.strip() and math.isfinite(float(number)):
                weights[name.strip()] = float(number)
                continue
        raise RecipeError(
            f"--weight {text}",
            rule="a weight is name=number",
            remedy="for example --weight length_reward=0.5",
        )
    return weights


def open_named(run: str, latest: str) -> Any:
    """The run, which is named where the user did not."""
    from workbench.run.directory import open_run

    opened = open_run(run, latest=latest)
    if run == "latest":
        print(opened.describe(), file=sys.stderr)
    return opened


def as_typed(text: str) -> str:
    """The workbench's commands in a text as this terminal finds them: after `uv run` where it was
    called so, by its path where it is not on PATH.
    """
    own = sys.argv[0]
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # of which PATH says nothing: uv changes it
        own = "uv run workbench"
    elif shutil.which("workbench") or Path(own).name != "workbench":
        return text
    names = "|".join(name for names in GROUPS.values() for name in names)
    return re.sub(
        rf"(^\s*|`)workbench (?=(?:{names})\b)", lambda found: f"{found[1]}{own} ", text, flags=re.M
    )


def as_flags(text: str) -> str:
    """A remedy in the command line's words: `overwrite=True` is --overwrite there, `into="base"`
    --into base.
    """
    return re.sub(
        r'\b(into|overwrite)=(?:True|"(\w+)")',
        lambda match: f"--{match[1]} {match[2] or ''}".rstrip(),
        text,
    )


def json_text(data: object) -> str:
    """One JSON object in ASCII: json leaves DEL as it is, and writes NaN, which is not JSON."""
    from workbench.base.workspace import to_json

    return json.dumps(to_json(data), allow_nan=False).replace("\x7f", "\\u007f")


def main() -> None:
    """Entry point: an error of the workbench's own is three lines and exit code 2, not a
    traceback.
    """
    guard_output()
    if not sys.stderr.isatty():  # libraries' bars would fill a file; read when tqdm is imported
        os.environ.setdefault("TQDM_DISABLE", "1")
    home_folder()
    try:
        try:
            app()
        finally:
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
    except Exception as met:
        from workbench.base.extras import explained
        from workbench.base.processes import rank

        met = explained(met)
        if (error := _told(met)) is None:  # a bug of ours: exit code 1 would mean "no"
            traceback.print_exception(met)
        else:
            process = f"process {rank()}: " if rank() else ""
            line = f"{process}{type(error).__name__}: {as_flags(str(error))}"
            print(as_typed("\n".join([line, *getattr(met, "__notes__", ())])), file=sys.stderr)
        sys.exit(2)


def _told(met: Exception) -> WorkbenchError | None:
    # What ended a command, for who called it; None: it is not theirs to mend.
    from workbench.base.workspace import disk_error

    if isinstance(met, WorkbenchError):
        return met
    if isinstance(met, OSError) and met.filename == STANDARD_OUTPUT:
        return WorkbenchError(  # on which disk it ends, nobody knows here
            f"{STANDARD_OUTPUT} cannot be written: {met.strerror}",
            rule="a command's result goes there",
            remedy="send it where there is space: > FILE",
        )
    said = f"{type(met).__name__}: {met}"
    if isinstance(met, MemoryError) or re.search("OutOfMemory|could not create a primitive", said):
        return WorkbenchError(
            said[:500],
            rule="a command fits into memory",
            remedy="end other programs, or use smaller batches; what is on disk is whole, and"
            " `workbench continue` resumes",
        )
    return disk_error(met)
