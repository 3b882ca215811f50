"""The results of the notebooks as tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.base.kinds import Fields
from workbench.views.figure import Picture, inline_image, new_figure, twin_bars, with_legend
from workbench.views.groups import contribution_bars, group_tables
from workbench.views.look import BAD, BLUE, GREEN, GREY, MARKED, ORANGE, READ_LINE, RED
from workbench.views.tables import (
    CellMark,
    Table,
    Verbatim,
    View,
    as_html,
    coloured,
    cut,
    joined,
    number,
    plain_text,
    pre,
)
from workbench.views.turns import transcript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.data.template import TemplateCard
    from workbench.exporting.checks import Proof, Proofs
    from workbench.inspection.measured import Evaluation
    from workbench.inspection.reading import RecordedGroup
    from workbench.training.plan import Plan

_TEXT = f"white-space:pre-wrap;font-family:monospace;border-left:{READ_LINE};padding-left:8px"
_SPECIAL = f"{MARKED};border-radius:3px;padding:0 2px"


def rows_table(rows: Any) -> Table:
    """The first rows of a source, every column that one of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [
        [Verbatim(value) if isinstance(value := row.get(name), str) else value for name in names]
        for row in rows
    ]
    return Table(names, cells, f"the first rows of {rows.name}")


def lengths_picture(lengths: Any) -> Picture:
    """`PromptLengths` as a histogram, with the limits that cover most prompts, and what the filter
    leaves out shaded.
    """
    figure, axis = new_figure(8, 2.6)
    shortest, longest, most = min(lengths.lengths), max(lengths.lengths), lengths.max_tokens
    # A few very long ones would leave a single bar of all the others.
    cut = int(np.ceil(np.percentile(lengths.lengths, 99)))
    beyond = sum(length > cut for length in lengths.lengths) if longest > 2 * cut else 0
    longest = cut if beyond else longest
    bins = np.arange(shortest, longest + 2) - 0.5 if longest - shortest < 60 else 60
    axis.hist(lengths.lengths, bins=bins, range=(shortest, longest), color=BLUE)
    for (share, limit), style in zip(sorted(lengths.covering.items()), (":", "--", "-")):
        label = f"at most {limit} tokens: {share:.0%} of the prompts"
        axis.axvline(limit, color=ORANGE, linestyle=style, label=label)
    if most is not None and most < longest:
        axis.axvspan(most + 0.5, longest + 0.5, color=RED, alpha=0.15, label="left out")
    axis.set_xlim(shortest - 1, longest + 1)
    axis.locator_params(integer=True)
    more = f"; {beyond} longer, up to {max(lengths.lengths):,}" if beyond else ""
    axes = {"x": f"prompt length, tokens{more}", "y": "rows"}
    return Picture(with_legend(figure, axis, **axes), str(lengths))


def difficulty_picture(profile: Any) -> Picture | Table:
    """A difficulty `Profile` as bars: prompts by number of right completions; never, sometimes and
    always coloured.
    """
    if not profile.solved:
        return Table(["difficulty"], [[str(profile)]])
    size = profile.settings["num_generations"]
    most = max(solved.of for solved in profile.solved.values())
    right = [round(solved.rate * most) for solved in profile.solved.values()]
    counts = np.bincount(right, minlength=most + 1)
    figure, axis = new_figure(8, 2.6)
    kinds = {"never": ([0], ORANGE), "sometimes": (range(1, most), BLUE), "always": ([most], GREEN)}
    for kind, (places, colour) in kinds.items():
        label = f"{kind} solved: {profile.shares[kind]:.0%}"
        axis.bar(places, counts[list(places)], color=colour, width=0.85, label=label)
    axis.locator_params(integer=True)
    dead = f"about {profile.dead_groups(size):.0%} of groups of {size}"
    axes = {"x": f"right completions of {most}", "y": "prompts"}
    title = f"{dead} would be all right or all wrong"
    return Picture(with_legend(figure, axis, **axes, title=title), str(profile))


def card_view(card: TemplateCard) -> View:
    """A `TemplateCard`: the exact text with its special tokens marked, what a trainer makes of it,
    and what to worry about.
    """

    def tags(survive: bool) -> str:
        return " ".join(tag for tag, survives in card.survives.items() if survives == survive)

    special = dict.fromkeys(token.text for token in card.tokens if token.special)
    lost = f"; LOST: {tags(False)}" if tags(False) else ""
    words = {True: "yes", False: "NO", None: "-"}
    ends = [f"{text} ({identity})" for identity, text in card.eos_tokens.items()]
    opened = f"<{card.prefilled}>" if card.prefilled else "none"
    of_tools = f", {card.tools_tokens} of them the tools" if card.tools_tokens else ""
    facts = {
        "tokens": f"{len(card.tokens)}{of_tools}",
        "special tokens": " ".join(special) or "none",
        "tags that survive decoding": tags(True) + lost or "none expected",
        "tokens that end a completion": ", ".join(ends) or "none",
        "the template ends the assistant's turn with one of them": words[card.ends_turns],
        "tag opened by the template itself": opened + (", and closed" if card.closed else ""),
        "the system message is in the text": words[card.keeps_system],
    }
    if card.thinks:
        facts["completions begin by themselves with"] = f"<{card.thinks}>"
    if card.adds:
        facts["the template adds words of its own"] = cut(card.adds, 90)
    table = Table(["what a trainer makes of it", ""], facts.items())
    span = {True: f"<span style='{_SPECIAL}'>{{}}</span>", False: "{}"}
    marked = "".join(span[token.special].format(as_html(token.text)) for token in card.tokens)
    worries = [f"check: {problem}" for problem in card.problems] or ["Nothing to worry about."]
    text = "\n".join([plain_text(card.text), "", str(table), *map(plain_text, worries)])
    verdict = "".join(map(pre, worries))
    return View(f"<pre style='{_TEXT}'>{marked}</pre>{table._repr_html_()}{verdict}", text)


def plan_view(plan: Plan) -> View:
    """The batch in words, what is not as requested, and every setting: requested, effective, set
    by.
    """
    lines = [*plan.sentences, *(f"note: {note}" for note in plan.notes)]
    return View(pre("\n".join(lines)) + Table(plan.HEADER, plan.cells)._repr_html_(), str(plan))


def group_view(group: RecordedGroup) -> View:
    """A group's completions from best to worst, and what each function adds to their advantages,
    numbered alike.
    """
    table = group_tables(group.explained)[0]
    table.caption = group.title
    verdict = group.explained.verdict
    for row, turns in zip(table.rows, group.turns):
        row[1] = transcript(turns)
    bars = inline_image(contribution_bars(group.explained), f"step {group.step}: {verdict}")
    return View(f"<div>{bars}</div>{table._repr_html_()}", f"{table}\n{verdict}")


def evaluation_picture(evaluation: Evaluation) -> View:
    """The shares before and after, with their 95 % intervals; pass@k of both; the curve over
    checkpoints; and the numbers.
    """
    from workbench.inspection.statistics import bootstrap_interval, share_interval

    text, numbers = str(evaluation), evaluation.found
    labels, *sides = zip(*evaluation.pairs)
    policies = {"base": (evaluation.before, GREY), "trained": (evaluation.after, BLUE)}
    contents = [policy.content for policy, _ in policies.values()]
    if any(contents):
        labels += ("correct, of those in it",)
    twins: Fields = {}
    curves: Fields = {}
    for (label, (policy, colour)), side, content in zip(policies.items(), sides, contents):
        shares = [share_interval(right) for right in side]
        if any(contents):
            shares.append(content or (np.nan, np.nan, np.nan))
        share, low, high = np.array(shares).T
        twins[label] = (colour, share, [share - low, high - share])
        tries = policy.pass_at_k()
        curves[label] = (tries.mean(axis=0), *bootstrap_interval(tries.T), colour)
    figure, axis = new_figure(8, 0.75 * len(labels) + 0.9)
    for bars in twin_bars(axis, labels, twins, error_kw={"elinewidth": 1, "capsize": 3}):
        axis.bar_label(bars, fmt="{:.0%}", padding=4, fontsize=8)
    axis.set_xlim(0, 1.08)
    with_legend(figure, axis, x="share of held-out completions")
    images = [inline_image(figure, text.partition(";")[0])]
    if (n := numbers["samples"]) > 1:
        last = " -> ".join(f"{share[-1]:.0%}" for share in numbers["pass_at_k"].values())
        title = f"{numbers['verdict']['word']}: pass@{n} {last}"
        axes = {"x": "k, tries at a prompt", "y": "pass@k", "title": title}
        ticks = [2**power for power in range(n.bit_length())]
        images.append(shares_picture(range(1, n + 1), curves, axes, ticks))
    if numbers["curve"]:
        names = ("step", "correct", "low", "high")
        steps, *curve = ([point[name] for point in numbers["curve"]] for name in names)
        axes = {"x": "step", "y": "correct, strict format", "title": "checkpoint by checkpoint"}
        images.append(shares_picture(steps, {"correct": (*curve, BLUE)}, axes, steps))
    return View(f"{''.join(images)}{pre(text)}", text)


def shares_picture(
    x: Sequence[int],
    curves: dict[str, tuple],
    axes: dict[str, str],
    ticks: Sequence[int],
    trained: int | None = None,
) -> str:
    """Curves of shares, {label: (mean, low, high, colour)}, their intervals as areas: HTML."""
    figure, axis = new_figure(6, 2.8)
    for label, (mean, low, high, colour) in curves.items():
        axis.plot(x, mean, color=colour, marker="o", markersize=3, label=label)
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if trained in x:
        axis.axvline(trained, color=ORANGE, linestyle="--", label="trained level")
    if ticks is not x:  # tries double
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_ylim(0, 1.02)
    return inline_image(with_legend(figure, axis, **axes), axes["title"])


_GREEDY = (
    "Greedy: the likeliest token every time. A base that is right then may be wrong more often when"
    " it samples, as in training: `workbench eval` measures that gain."
)


def proof_table(proof: Proof | Proofs) -> View:
    """What artefacts do beside policy and base, a line each; then every check with its mark, what
    is wrong, what is unproven.
    """
    from workbench.exporting.checks import Proofs

    proofs = list(proof) if isinstance(proof, Proofs) else [proof]
    measured = next((one.measured for one in proofs if one.measured), {})
    rows: list[list[object]] = []
    if measured:
        rows += [[who, "", *_numbers(measured, who)] for who in ("policy", "base")]
    views: list[View | Table] = []
    for one in proofs:
        mark = CellMark("passed" if one.passed else "FAILED")
        rows.append([one.format, mark, *_numbers(one.measured, "artefact")])
        inner = joined(_checked(one))
        style = f"color:{mark.colour};cursor:pointer;margin:4px 0"
        summary = f"<summary style='{style}'>{as_html(one.verdict)}</summary>"
        shown = "" if one.passed and len(proofs) > 1 else " open"
        page = f"<details{shown}>{summary}{inner.html}</details>"
        views.append(View(page, f"{one.verdict}\n\n{inner}"))
    header = ["", "verdict", "share of the run's change", "greedy reward", "greedy pass@1"]
    table = Table([*header, "ended by EOS", "KL per token"], rows)
    return joined([table, *([View(pre(_GREEDY), _GREEDY)] if measured else []), *views])


def _numbers(measured: Fields, who: str) -> list[str]:
    # A proof may come from a file that somebody else wrote: what is not there is left out.
    forms = {"reward": ".2f", "pass@1": ".0%", "ended": ".0%", "kl_per_token": ".2g"}
    known = {name: measured.get(name) or {who: None} for name in forms}
    numbers = [number(known[name].get(who, 0), form) for name, form in forms.items()]
    share = {"policy": "100%", "base": "0%"}.get(who, "-")
    if who == "artefact" and "of_the_run" in measured:
        share = "{share:.0%} ({low:.0%} to {high:.0%})".format(**measured["of_the_run"])
    return [share, *numbers]


def _checked(proof: Proof) -> list[View | Table]:
    from workbench.exporting.checks import CAUSES

    rows = [[each.level, each.name, CellMark(each.mark), each.found] for each in proof.checks]
    told: list[View | Table] = []
    for each in proof.failed:
        line = f"{each.name}: {'; '.join(filter(None, [CAUSES.get(each.cause), each.remedy]))}"
        told.append(View(coloured(line.replace("`", ""), BAD), line))
    for what in proof.unproven:
        line = f"unproven: {what}"
        told.append(View(coloured(line.replace("`", "")), line))
    return [Table(["level", "check", "", "found"], rows), *told]
