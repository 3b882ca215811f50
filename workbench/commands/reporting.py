"""A run's report: one self-contained page that begins with the answer. No script, nothing
fetched.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator
from pathlib import Path

from workbench import inspection
from workbench.base.errors import RunError, WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.workspace import encodable, replace_file
from workbench.exporting.card import fenced
from workbench.exporting.public import clean
from workbench.health.diagnosis import Verdicts, examine_run
from workbench.inspection.measured import Evaluation, gain_in_words
from workbench.inspection.next import next_steps
from workbench.inspection.reading import (
    Listing,
    RecordedGroup,
    answer_column_of,
    by_step,
    explain_group,
)
from workbench.run.directory import RunDirectory
from workbench.run.held_out import told
from workbench.run.rollouts import batch_and_place
from workbench.views.display import view_of
from workbench.views.look import ALARM, REPORT
from workbench.views.tables import Table, Verbatim, pre

# Whatever a completion holds, a browser runs nothing and asks nobody: a second wall behind the
# escaping.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_EXAMPLES = 3  # prompts fixed, and as many broken


def write_report(
    run: RunDirectory,
    file: Path | None = None,
    *,
    markdown: bool = False,
    answer_column: str | None = None,
) -> Path:
    """Write what a run did, and whether it is better, as one self-contained page; returns the file.

    It begins with the answer: the gain with its interval, taught or sharpened, health, prompts
    fixed and broken. Then come curves, steps, failures, settings, environment and samples, from the
    record and the last evaluation; no policy is loaded.

    Args:
        file: None: `report.html` (or `report.md`) in the run's folder.
        markdown: the same as text, without figures.
        answer_column: as for `failures`; where it is None and no column's name tells, the page
            omits causes.

    Raises:
        RunError: if the run recorded nothing, or has no such column.
    """
    file = file or run.path / f"report.{'md' if markdown else 'html'}"
    sections = list(_sections(run, answer_column))
    title = run.name
    for _, view in sections:
        if isinstance(view, Evaluation):
            title += f": {gain_in_words(view.found)}"
    if (alarm := str(sections[0][1]).partition("\n")[0]).startswith(ALARM):
        title += f" {alarm}"
    if markdown:
        # The run's curves are a picture alone.
        parts = [
            f"## {name}\n\n{fenced(_text(view), 'text')}\n\n"
            for name, view in sections
            if view is not run
        ]
        page = f"# {printable(title)}\n\n{''.join(parts)}"
    else:
        title = html.escape(printable(title))
        parts = [
            f"<details{' open' if number < 7 else ''}><summary>{html.escape(name)}</summary>"
            f"{_html(view)}</details>"
            for number, (name, view) in enumerate(sections)
        ]
        page = (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta"
            f" http-equiv='Content-Security-Policy' content=\"{_POLICY}\"><title>{title}</title>"
            f"<style>{REPORT}</style></head><body><h1>{title}</h1>{''.join(parts)}</body></html>\n"
        )
    with replace_file(file) as beside:
        beside.write_text(encodable(page), encoding="utf-8")
    return file


def _sections(run: RunDirectory, answer_column: str | None) -> Iterator[tuple[str, object]]:
    evaluation: Evaluation | None = None
    with contextlib.suppress(WorkbenchError):
        evaluation = inspection.read_evaluation(run)
    manifest = run.manifest()
    verdicts = examine_run(run, last=200)
    steps = by_step(run)
    hacks = inspection.hacking(run, evaluation)
    held_out = run.result().get("held_out")
    in_training = [told(held_out)] if held_out else []
    if evaluation is None:
        gained = [_not_evaluated(run, manifest), *in_training]
    else:
        changed = inspection.regressions(evaluation)
        ends = (evaluation.found[when]["correct"] for when in ("before", "after"))
        right = "right {:.0%} -> {:.0%}, on prompts that it never trained on".format(*ends)
        gained = [right, *str(evaluation).splitlines()[:4], *in_training, changed.verdict]
    alarms = [each.title for each in verdicts if each.state == "alarm"]  # causes come first
    alarmed = [f"{ALARM} alarm: {', '.join(alarms)}"] * bool(alarms)
    yield "In short", "\n".join([*alarmed, *gained, run.describe(run.name), hacks.verdict])
    if not run.live:
        yield "What next", next_steps(run, evaluation, verdicts, hacks)
    yield "Health", verdicts
    yield "Curves", run
    if evaluation is not None:
        yield "Base against trained", evaluation
        worse = changed.frame[changed.frame["change"] < 0]
        better = changed.frame[changed.frame["change"] > 0][::-1]
        for how, frame in (("worse", worse), ("better", better)):
            listing = Listing(f"{len(frame)} prompts", frame.head(_EXAMPLES))
            yield f"Prompts that became {how}", listing
    if warmed := manifest.get("warm_start"):
        yield "Warm start", _values(["", "found"], warmed)
    yield "Step by step", steps
    measured = evaluation is not None and evaluation.rows
    columns = evaluation.rows[0] if measured else batch_and_place(run)[0].columns
    try:
        column = answer_column or answer_column_of(columns, manifest)
        yield "Why completions fail", inspection.failures(evaluation or run, column)
    except RunError as error:
        if answer_column:
            raise
        which = f"`workbench report {run.name} --answer-column NAME` says which it is"
        yield "Why completions fail", f"{error.value}: {which}"
    yield "Reward hacking", hacks
    yield "Prompts that never had a mixed group", inspection.never_mixed(run)
    yield "A group of the last step", explain_group(run, answer_column=answer_column)
    # The page may be handed on: what a card leaves out, it leaves out.
    settings = clean(manifest.get("settings") or {})
    effective = dict(sorted((settings.get("in_force") or {}).items()))
    if manifest.get("attached"):  # nobody asked the workbench for any of them
        yield "Settings", _values(["setting", "effective"], effective)
    else:
        requested = settings.get("asked") or {}
        yield "Settings", _values(["setting", "requested", "effective"], requested, effective)
    environment = clean({**(manifest.get("versions") or {}), **(manifest.get("policy") or {})})
    environment.pop("base", None)
    yield "Environment", _values(["", "found"], environment)


def _not_evaluated(run: RunDirectory, manifest: Fields) -> str:
    remedy = f"`workbench eval {run.name}` measures what it gained"
    if manifest.get("attached"):
        remedy = "the run keeps no adapter; measure the model that your trainer saved yourself"
        if run.has_adapter:
            remedy = "its trainer was your own: wb.evaluate(run, task=...) measures it"
    return f"not evaluated yet: {remedy}"


def _values(header: list[str], *columns: Fields) -> Table:
    # A row for each name of the last column.
    rows = [[name, *(Verbatim(own.get(name, "-")) for own in columns)] for name in columns[-1]]
    return Table(header, rows)


def _html(result: object) -> str:
    view = pre(result) if isinstance(result, str) else view_of(result)
    if isinstance(view, str):
        return view
    if hasattr(view, "_repr_html_"):
        return view._repr_html_()
    return view._repr_mimebundle_()["text/html"]


def _text(result: object) -> str:
    # Completions are in a group's view, not in its text; pictures and long tables are in words.
    shown = isinstance(result, (RecordedGroup, Verdicts))  # what is well, also
    return printable(str(view_of(result) if shown else result))
