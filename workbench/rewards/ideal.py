"""The completion that an honest policy would write: the format that the prompt asks for, filled with the right answer.

It is built from the prompt itself, as a reader would: the tags in their order and with their line breaks, `####`,
`\\boxed{}`, a JSON schema, or nothing but words. A reward that does not pay for it in full pays for nothing that a
policy can learn from this prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.dataset.answer_column import MARK, is_number

AS_ASKED = "as asked"
ONE_LINE = "all on one line"
NO_ANSWER = "what was asked for"  # written where the task has no answers
# Names of the block that holds the answer; any other block is for working it out.
_ANSWER_TAGS = {
    "answer", "final_answer", "finalanswer", "solution", "result", "output", "final", "response", "sql", "code",
}  # fmt: skip
_THINK_TAGS = {
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "scratchpad", "working", "working_out", "analysis",
}  # fmt: skip
_OPENING = re.compile(r"<([A-Za-z_]\w{0,40})>")


class Block(NamedTuple):
    """One asked-for block: opening, white space, content, white space, closing; and the white space that follows it."""

    name: str
    opening: str
    closing: str
    before: str
    after: str
    between: str


class Format(NamedTuple):
    """The format that a prompt asks for."""

    blocks: tuple[Block, ...]
    answer_tag: str | None  # None: the answer stands outside of the blocks
    boxed: bool
    mark: bool
    json: bool

    @property
    def asks(self) -> bool:
        """Whether any format is asked for."""
        return bool(self.blocks or self.boxed or self.mark or self.json)

    def __str__(self) -> str:
        parts = [block.opening for block in self.blocks]
        parts += [name for name, there in ((MARK, self.mark), ("\\boxed{}", self.boxed), ("JSON", self.json)) if there]
        return " ".join(parts) or "no format"

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion in this format.

        Args:
            compact: without the line breaks inside and between the blocks.
        """
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


class Ideal(NamedTuple):
    """An honest completion, and in what it differs from the one that was asked for."""

    name: str
    text: str


def prompt_text(prompt: Any) -> str:
    """The words of a prompt that were not written by the assistant."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(message["content"]) for message in prompt if message["role"] != "assistant")


def asked_format(row: Mapping[str, Any]) -> Format:
    """The format that a row's prompt asks for.

    >>> str(asked_format({"prompt": "Answer as <think>why</think> <answer>what</answer>"}))
    '<think> <answer>'
    """
    text = _asking(row["prompt"])
    marks = _marks(text)
    blocks, place = [], 0
    for index, (name, opening, closing) in enumerate(marks):
        # After the block before, if it stands there: a prompt may name the tags first and show them afterwards.
        start = text.find(opening, place)
        start = text.find(opening) if start < 0 else start
        end = text.find(closing, start)
        place = end + len(closing)
        following = text.find(marks[index + 1][1], place) if index + 1 < len(marks) else -1
        gap = text[place:following] if following >= 0 else ""
        inside = _spaces(text[start + len(opening) : end])
        blocks.append(Block(name, opening, closing, *inside, gap if gap and not gap.strip() else inside[0]))
    schema = row.get("schema") is not None
    answer_tag = _answer_tag([name for name, _, _ in marks])
    return Format(tuple(blocks), answer_tag, not schema and "\\boxed" in text, not schema and MARK in text, schema)


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


def _answer_tag(names: list[str]) -> str | None:
    named = [name for name in names if name.casefold() in _ANSWER_TAGS]
    if named:
        return named[-1]
    return names[-1] if names and names[-1].casefold() not in _THINK_TAGS else None


def reasoning_for(answer: str, lines: int = 2) -> str:
    """A short working that ends in the answer.

    >>> reasoning_for("42")
    'Step by step:\\n41 + 1 = 42'
    """
    last = (
        f"{int(answer) - 1} + 1 = {answer}"
        if re.fullmatch(r"-?\d{1,15}", answer, re.ASCII)
        else f"it comes to {answer}"
    )
    return f"Step by step:{' ' if lines == 1 else chr(10)}{last}"


def answer_of(row: Mapping[str, Any], column: str = "answer") -> str:
    """The right answer as a policy would write it; empty if the row has none."""
    answer = row.get(column)
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


def wrong_answer(answer: str) -> str:
    """An answer of the same kind that is not right.

    >>> wrong_answer("42"), wrong_answer("Paris"), wrong_answer('{"age": 41}')
    ('43', 'not Paris', '{"age": 42}')
    """
    if re.fullmatch(r"-?\d{1,15}", answer, re.ASCII):
        return str(int(answer) + 1)
    if is_number(answer):
        return "999999"
    if answer.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(_other(json.loads(answer)), ensure_ascii=False)
        except ValueError:
            pass
    return f"not {answer}"


def _other(value: Any) -> Any:
    # The same shape with other values, so that it still keeps to a schema.
    if isinstance(value, dict):
        return {key: _other(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_other(item) for item in value]
    if isinstance(value, bool) or value is None:
        return not value
    return value + 1 if isinstance(value, (int, float)) else "something else"


def ideals(row: Mapping[str, Any], answer_column: str = "answer", written: str | None = None) -> list[Ideal]:
    """Honest completions of a row: the first as its prompt asks, the others with differences that no reader would mind.

    Args:
        answer_column: the column that holds the right answer.
        written: the honest completion, where the task says how it looks.
    """
    answer, asked = answer_of(row, answer_column) or NO_ANSWER, asked_format(row)
    first = written if written is not None else asked.write(reasoning_for(answer), answer)
    if not asked.asks and written is None:
        return [Ideal(AS_ASKED, first), Ideal("the answer alone", answer), Ideal("in a sentence", f"It is {answer}")]
    found = [Ideal(AS_ASKED, first), Ideal("with a newline at the end", first + "\n")]
    if written is None and not asked.json:
        one_line = asked.write(reasoning_for(answer, 1), answer)
        found += [Ideal("with its reasoning on one line", one_line)]
        found += [Ideal("with its reasoning on one line and a newline at the end", one_line + "\n")]
        if asked.blocks:
            found.append(Ideal(ONE_LINE, asked.write(reasoning_for(answer, 1), answer, compact=True)))
    return found
