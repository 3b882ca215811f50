"""How a command is made: its group, the options that commands share, its result as text or JSON,
and its errors.
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
from typing import Annotated, Any, NamedTuple, get_args

import typer
import typer.core

from workbench import __version__
from workbench.errors import RecipeError, WorkbenchError
from workbench.kinds import Fields, Function
from workbench.printable import STANDARD_OUTPUT, guard_output
from workbench.workspace import home_folder

# The commands as `workbench --help` lists them: the stages are the notebooks'.
GROUPS = {
    "Start": ["demo", "lab", "notebook", "lesson"],
    "01 Dataset": ["check"],
    "02 Rewards": ["probe", "trial", "replay"],
    "03 Train": ["plan", "train", "watch", "control", "continue"],
    "04 Inspect": ["eval", "report", "duel", "twin"],
    "05 Export": ["export", "prove", "ask", "verify"],
    "Set-up and words": ["doctor", "explain"],
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


# What stands for a value in a command's help, by its type.
METAVARS = {int: "N", float: "NUMBER", Path: "PATH"}


class Result(NamedTuple):
    """What a command returns: for scripts (`--json`), for people, and its exit code."""

    data: Any
    text: Any
    code: int = 0


class Help(NamedTuple):
    """A docstring as `--help` shows it: the command, and its parameters by name."""

    text: str
    options: dict[
        str, tuple[str, str, str]
    ]  # parameter -> flag, metavar ("": the usual ones), help


def help_of(function: Function) -> Help:
    """A function's docstring, whose `Args:` may name a flag and its value:
    `checkpoint (--from NAME): ...`.
    """
    text, _, described = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    entry = r"^    (\w+)(?: \((--\w+) (\S+)\))?: (.*(?:\n {5,}.*)*)"
    options = {name: tuple(rest) for name, *rest in re.findall(entry, described, re.M)}
    for line in re.findall(r"^    \w.*", described, re.M):
        if line.split()[0].rstrip(":") not in options:  # else its flag and its help would be lost
            raise ValueError(f"{line!r}: not `name: text` or `name (--flag METAVAR): text`")
    return Help(text, options)


def _described(
    own: inspect.Parameter, flag: str, metavar: str, about: str, least: float | None
) -> inspect.Parameter:
    more: Fields = {"help": " ".join(about.split()), "min": least}
    if own.kind is not own.KEYWORD_ONLY:
        option = typer.Argument(metavar=own.name.upper(), **more)
    elif own.default is False:
        option = typer.Option("--" + own.name.replace("_", "-"), **more)
    else:
        kind = next(iter(get_args(own.annotation)), own.annotation)  # of `int | None`: int
        more["metavar"] = metavar or METAVARS.get(kind, "TEXT")
        option = typer.Option(*filter(None, [flag]), **more)
    return own.replace(annotation=Annotated[own.annotation, option])


def command(
    name: str | None = None,
    *,
    aborted: str = "",
    least: dict[str, float] | None = None,
    streams: bool = False,
    **settings: Any,
) -> Callable[[Function], Function]:
    """A command of a function, as its signature and its docstring describe it: what is given by
    position is an argument, what is given by keyword an option, and a flag that is off a switch.

    The function returns a `Result`, which alone goes to standard output; with `streams` it prints
    what it has itself. `aborted`: what Ctrl-C leaves. `least`: parameter -> its smallest value.
    """

    def add(function: Function) -> Function:
        text, described = help_of(function)

        def run(as_json: bool = False, **arguments: object) -> None:
            from workbench.processes import is_main

            try:
                with contextlib.redirect_stdout(sys.stderr):  # what libraries print while they load
                    result = function(**arguments)
            except KeyboardInterrupt:  # typer would end without a word
                print(": ".join(filter(None, ["aborted", aborted])), file=sys.stderr)
                raise typer.Exit(130) from None
            if is_main():
                print(json_text(result.data) if as_json else as_typed(str(result.text)))
            if result.code:
                raise typer.Exit(result.code)

        signature = inspect.signature(function, eval_str=True)
        parameters = [
            _described(own, *described[own.name], (least or {}).get(own.name))
            if own.name in described
            else own  # shared by several commands, with its help
            for own in signature.parameters.values()
        ]
        if not streams:
            as_json = inspect.Parameter(
                "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
            )
            parameters.append(as_json)
        called = function if streams else run
        vars(called)["__signature__"] = signature.replace(parameters=parameters)
        name_of = name or getattr(function, "__name__", None)
        app.command(name_of, cls=Described, help=text, **settings)(called)
        return function

    return add


def shared(help: str, *names: str, **more: Any) -> Any:
    """An option that several commands have."""
    return typer.Option(*names, help=help, **more)


AsJson = Annotated[bool, shared("Print one JSON object on standard output, for scripts.", "--json")]
Words = list[str] | None
Set = Annotated[
    Words,
    shared(
        "Over the recipe: a dotted field, or a GRPOConfig name; may be repeated.",
        "--set",
        metavar="KEY=VALUE",
    ),
]
Steps = Annotated[
    int | None, shared("Train this many steps instead of the recipe's.", min=1, metavar="N")
]
TaskFile = Annotated[
    str, typer.Argument(metavar="TASK", help="A task file, or the name of a task that ships.")
]
Weight = Annotated[
    Words,
    shared("Another weight for a function; may be repeated.", metavar="FUNCTION=NUMBER"),
]
TemplateKwargs = Annotated[
    str | None,
    shared(
        "With --policy, as in the recipe's grpo: '{\"enable_thinking\": false}'.", metavar="JSON"
    ),
]
Port = Annotated[int, shared("Port of the JupyterLab server.", min=1, max=65535, metavar="N")]
Browser = Annotated[bool, shared("Open a browser.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, shared("Print the version and exit.", "--version")] = False,
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
    from workbench.workspace import to_json

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
        from workbench.extras import explained
        from workbench.processes import rank
        from workbench.workspace import disk_error

        met = explained(met)
        error = met if isinstance(met, WorkbenchError) else disk_error(met)
        if isinstance(met, OSError) and met.filename == STANDARD_OUTPUT:
            error = WorkbenchError(  # on which disk it ends, nobody knows here
                f"{STANDARD_OUTPUT} cannot be written: {met.strerror}",
                rule="a command's result goes there",
                remedy="send it where there is space: > FILE",
            )
        if isinstance(met, MemoryError) or re.search(
            "OutOfMemory|could not create a primitive", f"{type(met).__name__} {met}"
        ):
            remedy = (
                "end other programs, or use smaller batches; what is on disk is whole, and"
                " `workbench continue` resumes"
            )
            error = WorkbenchError(
                f"{type(met).__name__}: {met}"[:500],
                rule="a command fits into memory",
                remedy=remedy,
            )
        if error is None:  # a fault of its own; exit code 1 would mean "no"
            traceback.print_exception(met)
            sys.exit(2)
        lines = [f"{type(error).__name__}: {as_flags(str(error))}", *getattr(met, "__notes__", ())]
        if rank() > 0:
            lines[0] = f"process {rank()}: {lines[0]}"
        print(as_typed("\n".join(lines)), file=sys.stderr)
        sys.exit(2)
