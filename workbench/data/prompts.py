"""System prompts, and questions as chat messages.

The system prompt says which format the reward functions will look for, so each is named after the format it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.errors import DataError

Message = dict[str, str]

# The format of the embedded policy's task and of the five reward functions.
SYSTEM_PROMPT = """Respond in the following format:
<reasoning>
[Your step-by-step thinking]
</reasoning>
<answer>
[Final answer]
</answer>"""

THINK_PROMPT = """Think about the question first, then answer it, in this format:
<think>
[your thinking]
</think>
<answer>
[the final answer and nothing else]
</answer>"""

MARK_PROMPT = "Solve the problem step by step and write the final answer on a last line of its own, after ####."

SYSTEM_PROMPTS = {"tags": SYSTEM_PROMPT, "think": THINK_PROMPT, "mark": MARK_PROMPT, "none": ""}

# One worked example for each format, in the user's and the assistant's words: small models copy what they are shown.
EXAMPLES: dict[str, tuple[str, str]] = {
    "tags": (
        "Tom has 3 boxes with 4 pens each and gives 2 pens away. How many pens has he left?",
        "<reasoning>\n3 boxes with 4 pens are 3 * 4 = 12 pens. 12 - 2 = 10.\n</reasoning>\n<answer>\n10\n</answer>",
    ),
    "think": (
        "Tom has 3 boxes with 4 pens each and gives 2 pens away. How many pens has he left?",
        "<think>\n3 boxes with 4 pens are 3 * 4 = 12 pens. 12 - 2 = 10.\n</think>\n<answer>\n10\n</answer>",
    ),
    "mark": (
        "Tom has 3 boxes with 4 pens each and gives 2 pens away. How many pens has he left?",
        "3 boxes with 4 pens are 3 * 4 = 12 pens. 12 - 2 = 10.\n#### 10",
    ),
}


def system_prompt(which: str | None) -> str:
    """The text of a system prompt: one of the names above, or the text itself; None and "none" mean no system message.

    Raises:
        DataError: for a single word that is no name: a slip, or a system prompt that says nothing.
    """
    if not which:
        return ""
    if which in SYSTEM_PROMPTS:
        return SYSTEM_PROMPTS[which]
    if len(which.split()) < 2:
        raise DataError(
            f"system_prompt = {which!r}",
            rule=f"a system prompt is one of {', '.join(SYSTEM_PROMPTS)}, or a text",
            remedy="choose a name, or write out the text",
        )
    return which


def examples_for(which: str | None) -> list[tuple[str, str]]:
    """The worked example of a named system prompt, as a list of one.

    Raises:
        DataError: if that system prompt has none.
    """
    if which not in EXAMPLES:
        raise DataError(
            f"no worked example for system_prompt = {str(which)[:40]!r}",
            rule=f"an example ships for each of {', '.join(EXAMPLES)}",
            remedy="choose one of those, or give examples=[(question, answer)] of your own",
        )
    return [EXAMPLES[which]]


def to_messages(
    question: str, system: str = "", examples: Sequence[tuple[str, str]] = (), *, as_turns: bool = False
) -> list[Message]:
    """A question as chat messages.

    Args:
        system: text of the system message; empty: none.
        examples: (question, answer) pairs that are shown first.
        as_turns: show them as turns of the chat; otherwise they stand in the system message.
    """
    turns: list[Message] = []
    if as_turns:
        for asked, answered in examples:
            turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    elif examples:
        heading = "For example:" if len(examples) == 1 else "For examples:"
        shown = "\n\n".join(f"{asked}\n{answered}" for asked, answered in examples)
        system = f"{system}\n\n{heading}\n\n{shown}".strip()
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, *turns, {"role": "user", "content": question}]
