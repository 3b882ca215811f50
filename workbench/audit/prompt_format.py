"""The format that a prompt asks for, read as a reader would: tags with their line breaks, `####`, `\\boxed{}`, a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from workbench.data.answer_column import MARK
from workbench.errors import DataError
from workbench.rewards.answers import TAGS
from workbench.rewards.library import THINK_TAGS, correctness_reward, last_line_reward, mark_correctness_reward
from workbench.rewards.verifiers import countdown_reward, json_right_reward

# Names of the block that holds the answer; any other block is for working it out.
_ANSWER_TAGS = {
    "answer", "final_answer", "finalanswer", "solution", "result", "output", "final", "response", "sql", "code", "答案", "回答",
}  # fmt: skip
_THINK_TAGS = {
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "scratchpad", "working", "working_out", "analysis",
    "思考", "推理",
}  # fmt: skip
_OPENING = re.compile(r"<([^\W\d]\w{0,40})>")


class TagBlock(NamedTuple):
    """One expected block: opening, white space, content, white space, closing; and the white space that follows it."""

    name: str
    opening: str
    closing: str
    before: str
    after: str
    between: str


class ExpectedFormat(NamedTuple):
    """The format that a prompt asks for."""

    blocks: tuple[TagBlock, ...]
    answer_tag: str | None  # None: the answer stands outside of the blocks
    boxed: bool
    mark: bool
    json: bool
    shown: bool = True  # as it is to be written; False: the tags are only named, and where lines break is a guess

    @property
    def asks(self) -> bool:
        """Whether any format is asked for."""
        return bool(self.blocks or self.boxed or self.mark or self.json)

    def __str__(self) -> str:
        parts = [block.opening for block in self.blocks]
        parts += [name for name, there in ((MARK, self.mark), ("\\boxed{}", self.boxed), ("JSON", self.json)) if there]
        return " ".join(parts) or "no format"

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion in this format; `compact`: without the line breaks inside and between the blocks."""
        final = answer if self.json or not self.boxed else f"\\boxed{{{answer}}}"
        final = f"{MARK} {final}" if self.mark else final
        if not self.blocks:
            return final if self.json else f"{reasoning}\n{final}"
        text = ""
        for block in self.blocks:
            content = final if block.name == self.answer_tag else reasoning
            before, after, between = ("", "", "") if compact else block[3:]
            text += f"{block.opening}{before}{content}{after}{block.closing}{between}"
        return text.rstrip() if self.answer_tag else f"{text.rstrip()}\n{final}"


def prompt_text(prompt: Any) -> str:
    """The words of a prompt that were not written by the assistant."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return "\n".join(str(message["content"]) for message in messages if message["role"] != "assistant")


def parse_format(row: Mapping[str, Any]) -> ExpectedFormat:
    """The format that a row's prompt asks for.

    >>> str(parse_format({"prompt": "Answer as <think>why</think> <answer>what</answer>"}))
    '<think> <answer>'
    """
    text = _asking(row["prompt"])
    marks = _marks(text)
    blocks, place, shown, apart = [], 0, False, len(marks) == 1
    named = [name for name, _, _ in marks if name.casefold() in _ANSWER_TAGS]
    last = [name for name, _, _ in marks[-1:] if name.casefold() not in _THINK_TAGS]
    answer_tag = next(iter(named[-1:] + last), None)
    for index, (name, opening, closing) in enumerate(marks):
        # After the block before, if it stands there: a prompt may name the tags first and show them afterwards.
        start = text.find(opening, place if opening in text[place:] else 0)
        end = text.find(closing, start)
        place, content = end + len(closing), text[start + len(opening) : end]
        following = text.find(marks[index + 1][1], place) if index + 1 < len(marks) else -1
        gap = text[place:following] if following >= 0 else ""
        inside, shown, apart = _spaces(content), shown or "\n" in content, apart or bool(gap.strip())
        blocks.append(TagBlock(name, opening, closing, *inside, gap if gap and not gap.strip() else inside[0]))
    schema = row.get("schema") is not None
    if not shown:  # named in words, in whatever order: one thinks first
        blocks.sort(key=lambda block: block.name == answer_tag)
    boxed, mark = not schema and "\\boxed" in text, not schema and MARK in text
    return ExpectedFormat(tuple(blocks), answer_tag, boxed, mark, schema, shown or not apart)


def _asking(prompt: Any) -> str:
    # A question may hold tags of its own (HTML, code): where the system message asks for a format, that is the format.
    first = prompt[0] if not isinstance(prompt, str) and prompt else {}
    system = str(first["content"]) if first.get("role") == "system" else ""
    return system if _marks(system) or "\\boxed" in system or MARK in system else prompt_text(prompt)


def _marks(text: str) -> list[tuple[str, str, str]]:
    # (name, opening, closing) of <x>...</x> and of <start_x>...<end_x>, in the order in which they are opened.
    found = {}
    for name in _OPENING.findall(text):
        bare = name.removeprefix("start_")
        for closing in (f"</{name}>", f"<end_{bare}>") if bare != name else (f"</{name}>",):
            if closing in text:
                found.setdefault(bare, (bare, f"<{name}>", closing))
    return list(found.values())


def _spaces(content: str) -> tuple[str, str]:
    if not content.strip() or content.strip(" \n").startswith(("and", "tags")):
        return ("\n", "\n") if "\n" in content else ("", "")
    return content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]


def grader_for(row: Mapping[str, Any]) -> Callable[..., list[float]]:
    """The function that says whether a completion of this row is right, for the profile of 01; DataError if none can."""
    if "answer" not in row:
        remedy = "measure without one (profile_prompts = 0), or with a reward function of your own"
        raise DataError("the rows have no answer", rule="a pass rate needs a right answer", remedy=remedy)
    if "numbers" in row and "target" in row:
        return countdown_reward
    if "schema" in row:
        return json_right_reward
    asked = prompt_text(row["prompt"])
    if "<answer>" in asked:
        return correctness_reward
    return mark_correctness_reward if MARK in asked else last_line_reward


def advice(row: Mapping[str, Any]) -> str:
    """Which reward functions fit the row, where the five of notebook 02 do not; empty where they do."""
    if "answer" not in row:
        return "these rows have no answer: leave correctness_reward out and write reward functions that need none"
    grader, expected = grader_for(row), parse_format(row)
    if shipped := {countdown_reward: "countdown", json_right_reward: "json"}.get(grader):
        return f"these rows need other rewards: `task: {shipped}` in a recipe, or workbench.rewards.{grader.__name__}"
    tags = tuple(block.name for block in expected.blocks)
    also = "think_answer_format_reward" if tags == THINK_TAGS else f"make_tags_reward({tags})"
    fits = f"{grader.__name__}, {also}" if tags else grader.__name__
    others = f"these prompts ask for {expected}, and 02's reward functions look for <reasoning> and <answer>"
    return "" if tags == TAGS else f"{others}; what fits, in workbench.rewards: {fits}"
