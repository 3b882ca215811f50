"""The results of the notebooks as tables and pictures."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from workbench.kinds import Fields
from workbench.views.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Picture,
    inline_image,
    lying,
    new_figure,
    with_legend,
)
from workbench.views.groups import contribution_bars, group_tables
from workbench.views.tables import (
    BAD,
    GOOD,
    CellMark,
    Table,
    Verbatim,
    View,
    coloured,
    number,
    plain_text,
    pre,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.exporting.checks import Proof, Proofs
    from workbench.inspection.measured import Evaluation
    from workbench.inspection.reading import RecordedGroup
    from workbench.training.plan import Plan

_TEXT = "white-space:pre-wrap;font-family:monospace;border-left:3px solid #888;padding-left:8px"
_SPECIAL = "background:#f3d9a4;color:#222;border-radius:3px;padding:0 2px"


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
    bins = [edge - 0.5 for edge in range(shortest, longest + 2)] if longest - shortest < 60 else 60
    axis.hist(lengths.lengths, bins=bins, color=BLUE)
    by_limit: dict[int, list[str]] = {}
    for share, limit in sorted(lengths.covering.items()):
        by_limit.setdefault(limit, []).append(f"{share:.0%}")
    for (limit, shares), style in zip(by_limit.items(), (":", "--", "-"), strict=False):
        axis.axvline(
            limit,
            color=ORANGE,
            linestyle=style,
            label=f"at most {limit} tokens: {' and '.join(shares)} of the prompts",
        )
    if most is not None and most < longest:
        axis.axvspan(most + 0.5, longest + 0.5, color=RED, alpha=0.15, label="left out")
    axis.locator_params(integer=True)
    return Picture(with_legend(figure, axis, x="prompt length, tokens", y="rows"), str(lengths))


def difficulty_picture(profile: Any) -> Any:
    """A difficulty `Profile` as bars: prompts by number of right completions; never, sometimes and
    always coloured.
    """
    if not profile.solved:
        return Table(["difficulty"], [[str(profile)]])
    size, most = (
        profile.settings["num_generations"],
        max(solved.of for solved in profile.solved.values()),
    )
    right = [round(solved.rate * most) for solved in profile.solved.values()]
    figure, axis = new_figure(8, 2.6)
    kinds = {"never": ([0], ORANGE), "sometimes": (range(1, most), BLUE), "always": ([most], GREEN)}
    for which, (places, colour) in kinds.items():
        label = f"{which} solved: {profile.shares[which]:.0%}"
        axis.bar(
            places, [right.count(place) for place in places], color=colour, width=0.85, label=label
        )
    axis.locator_params(integer=True)
    title = (
        f"about {profile.dead_groups(size):.0%} of groups of {size} would be all right or all wrong"
    )
    return Picture(
        with_legend(figure, axis, x=f"right completions of {most}", y="prompts", title=title),
        str(profile),
    )


def card_view(card: Any) -> View:
    """A `TemplateCard`: the exact text with its special tokens marked, what a trainer makes of it,
    and what to worry about.
    """
    survive, lost = (
        " ".join(tag for tag, survives in card.survives.items() if survives == own)
        for own in (True, False)
    )
    words = {True: "yes", False: "NO", None: "-"}
    rows = [
        ["tokens", str(len(card.tokens))],
        [
            "special tokens",
            " ".join(dict.fromkeys(token.text for token in card.tokens if token.special)) or "none",
        ],
        [
            "tags that survive decoding",
            (survive + (f"; LOST: {lost}" if lost else "")) or "none expected",
        ],
        [
            "tokens that end a completion",
            ", ".join(f"{text} ({id_})" for id_, text in card.eos_tokens.items()) or "none",
        ],
        ["the template ends the assistant's turn with one of them", words[card.ends_turns]],
        [
            "tag opened by the template itself",
            f"<{card.prefilled}>{', and closed' * card.closed}" if card.prefilled else "none",
        ],
        ["the system message is in the text", words[card.keeps_system]],
    ]
    if card.thinks:
        rows.append(["completions begin by themselves with", f"<{card.thinks}>"])
    if card.adds:
        rows.append(
            [
                "the template adds words of its own",
                card.adds if len(card.adds) < 90 else f"{card.adds[:88]} …",
            ]
        )
    table = Table(["what a trainer makes of it", ""], rows)
    marks = {True: f"<span style='{_SPECIAL}'>{{}}</span>", False: "{}"}
    marked = "".join(
        marks[bool(token.special)].format(html.escape(plain_text(token.text)))
        for token in card.tokens
    )
    listed = (
        "<p><b>Check"
        f" this:</b></p><ul>{''.join(f'<li>{pre(problem)}</li>' for problem in card.problems)}</ul>"
    )
    verdict = listed if card.problems else "<p>Nothing to worry about.</p>"
    worries = [plain_text(f"check: {problem}") for problem in card.problems] or [
        "nothing to worry about"
    ]
    text = "\n".join([plain_text(card.text), "", str(table), *worries])
    return View(f"<pre style='{_TEXT}'>{marked}</pre>{table._repr_html_()}{verdict}", text)


def plan_view(plan: Plan) -> View:
    """The batch in words, what is not as requested, and every setting: requested, effective, set
    by.
    """
    lines = [f"{plan.words}.", f"{plan.generation}.", *(f"note: {note}" for note in plan.notes)]
    return View(pre("\n".join(lines)) + Table(plan.HEADER, plan.cells)._repr_html_(), str(plan))


def group_view(group: RecordedGroup) -> View:
    """A group's completions from best to worst, and what each function adds to their advantages,
    numbered alike.
    """
    table = group_tables(group.explained)[0]
    table.caption = group.title
    bars = inline_image(
        contribution_bars(group.explained), f"step {group.step}: {group.explained.verdict}"
    )
    return View(f"{table._repr_html_()}<div>{bars}</div>", f"{table}\n{group.explained.verdict}")


def evaluation_picture(evaluation: Evaluation) -> View:
    """The shares before and after, with their 95 % intervals; pass@k of both; the curve over
    checkpoints; and the numbers.
    """
    from workbench.inspection.statistics import bootstrap_interval, share_interval

    text, found = str(evaluation), evaluation.found
    figure, axis = new_figure(8, 0.75 * len(evaluation.pairs) + 0.9)
    for which, (label, offset, colour) in enumerate(
        (("base", -0.18, GREY), ("trained", 0.18, BLUE)), 1
    ):
        for place, pair in enumerate(evaluation.pairs):
            share, low, high = share_interval(pair[1] if which == 1 else pair[2])
            drawn = {
                "xerr": [[share - low], [high - share]],
                "error_kw": {"elinewidth": 1, "capsize": 3},
            }
            axis.barh(
                place + offset,
                share,
                height=0.32,
                color=colour,
                label=None if place else label,
                **drawn,
            )
            axis.text(
                min(high + 0.015, 1.0), place + offset, f"{share:.0%}", va="center", fontsize=8
            )
    lying(axis, range(len(evaluation.pairs)), [label for label, _, _ in evaluation.pairs])
    axis.set_xlim(0, 1.08)
    with_legend(figure, axis, x="share of held-out completions")
    images = [inline_image(figure, text.partition(";")[0])]
    if (n := found["samples"]) > 1:
        both = {
            "base": (evaluation.before.pass_at_k(), GREY),
            "trained": (evaluation.after.pass_at_k(), BLUE),
        }
        curves = {
            label: (own.mean(axis=0), *bootstrap_interval(own.T), colour)
            for label, (own, colour) in both.items()
        }
        last = " -> ".join(f"{own[-1]:.0%}" for own in found["pass_at_k"].values())
        axes = {
            "x": "k, tries at a prompt",
            "y": "pass@k",
            "title": f"{found['verdict']['word']}: pass@{n} {last}",
        }
        images.append(
            _shares(range(1, n + 1), curves, axes, [2**power for power in range(n.bit_length())])
        )
    if found["curve"]:
        steps, *own = (
            [point[name] for point in found["curve"]] for name in ("step", "correct", "low", "high")
        )
        axes = {"x": "step", "y": "correct, strict format", "title": "checkpoint by checkpoint"}
        images.append(_shares(steps, {"correct": (*own, BLUE)}, axes, steps))
    return View(f"{''.join(images)}{pre(text)}", text)


def _shares(
    x: Sequence[int], curves: dict[str, tuple], axes: dict[str, str], ticks: Sequence[int]
) -> str:
    # Curves of shares, {label: (mean, low, high, colour)}, with their intervals as areas.
    figure, axis = new_figure(6, 2.8)
    for label, (mean, low, high, colour) in curves.items():
        axis.plot(x, mean, color=colour, marker="o", markersize=3, label=label)
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if ticks is not x:  # tries double
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_ylim(0, 1.02)
    return inline_image(with_legend(figure, axis, **axes), axes["title"])


def checklist_table(boxes: Sequence[Any]) -> Table:
    """What to be sure of, box by box, and the call that ticks what is not ticked."""
    rows = [
        [box.when, box.what, CellMark(box.state), Verbatim(box.why), Verbatim(box.call)]
        for box in boxes
    ]
    return Table(
        ["when", "be sure that", "", "seen", "to tick it"], rows, str(boxes).rpartition("\n")[2]
    )


def proof_table(proof: Proof | Proofs) -> View:
    """What artefacts do beside policy and base, a line each; then every check with its mark, what
    is wrong, what is unproven.
    """
    from workbench.exporting.checks import Proofs

    several = list(proof) if isinstance(proof, Proofs) else [proof]
    measured = next((one.measured for one in several if one.measured), {})
    rows = [[who, "", *_numbers(measured, who)] for who in ("policy", "base") if measured]
    rows += [
        [
            one.format,
            CellMark("passed" if one.passed else "FAILED"),
            *_numbers(one.measured, "artefact"),
        ]
        for one in several
    ]
    header = [
        "",
        "verdict",
        "share of the run's change",
        "reward",
        "pass@1",
        "ended by EOS",
        "KL per token",
    ]
    views: list[View | Table] = [Table(header, rows)]
    for one in several:
        inner, shown = _joined(_checked(one)), "" if one.passed and len(several) > 1 else " open"
        style = f"color:{GOOD if one.passed else BAD};cursor:pointer;margin:4px 0"
        summary = f"<summary style='{style}'>{html.escape(plain_text(one.verdict))}</summary>"
        views.append(
            View(f"<details{shown}>{summary}{inner.html}</details>", f"{one.verdict}\n\n{inner}")
        )
    return _joined(views)


def _joined(views: Sequence[View | Table]) -> View:
    return View("".join(view._repr_html_() for view in views), "\n\n".join(map(str, views)))


def _numbers(measured: Fields, who: str) -> list[str]:
    # A proof may come from a file that somebody else wrote: what is not there is left out.
    forms = {"reward": ".2f", "pass@1": ".0%", "ended": ".0%", "kl_per_token": ".2g"}
    numbers = [
        number(own.get(who, 0) if (own := measured.get(name)) else None, form)
        for name, form in forms.items()
    ]
    share = (
        "{share:.0%} ({low:.0%} to {high:.0%})".format(**measured["of_the_run"])
        if "of_the_run" in measured
        else "-"
    )
    return [{"policy": "100%", "base": "0%"}.get(who, share), *numbers]


def _checked(proof: Proof) -> list[View | Table]:
    from workbench.exporting.checks import CAUSES

    rows = [[each.level, each.name, CellMark(each.mark), each.found] for each in proof.checks]
    said = [
        (f"{each.name}: {'; '.join(filter(None, [CAUSES.get(each.cause), each.remedy]))}", BAD)
        for each in proof.failed
    ]
    said += [(f"unproven: {line}", "inherit") for line in proof.unproven]
    lines = [View(coloured(line.replace("`", ""), colour), line) for line, colour in said]
    return [Table(["level", "check", "", "found"], rows), *lines]
