"""Prompts: system prompts, each named after the format it asks for, questions as chat messages, and
ready-made chats.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from workbench.base.errors import DataError
from workbench.base.kinds import Prompt
from workbench.base.plain import plain
from workbench.data import reasons
from workbench.data.reasons import LeftOut

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

MARK_PROMPT = (
    "Solve the problem step by step and write the final answer on a last line of its own, after"
    " ####."
)

SYSTEM_PROMPTS = {"tags": SYSTEM_PROMPT, "think": THINK_PROMPT, "mark": MARK_PROMPT, "none": ""}

# One worked example for each format: small models copy what they are shown.
_ASKED = "Tom has 3 boxes with 4 pens each and gives 2 pens away. How many pens has he left?"
_WORKED = "3 boxes with 4 pens are 3 * 4 = 12 pens. 12 - 2 = 10."
EXAMPLES: dict[str, tuple[str, str]] = {
    "tags": (_ASKED, f"<reasoning>\n{_WORKED}\n</reasoning>\n<answer>\n10\n</answer>"),
    "think": (_ASKED, f"<think>\n{_WORKED}\n</think>\n<answer>\n10\n</answer>"),
    "mark": (_ASKED, f"{_WORKED}\n#### 10"),
}

ROLES = ("system", "user", "assistant", "tool")
_OTHER_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",
}
# Of a value's text: the path, address or bytes of a picture.
_PICTURE = re.compile(
    r"""
    (?:\W*|.*'(?:path|url)':\ ')               # alone, in a list, or the path of an object
    [^\s,]*\.(?:png|jpe?g|webp|gif|bmp|tiff?)  # a file's name
    ['")\]},]*(?:\s|$)
    | \W*data:image/                          # an address that is the picture
    | .*(?:\\x89PNG|\\xff\\xd8\\xff|<PIL\.)  # bytes, as Python writes them, or an object
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What stands for a picture at either end of a question.
_SEEN = ("<image>", "<|image|>", "<|image_1|>", "<|vision_start|>", "<|vision_end|>")
# A terminal's sequence goes as a whole: without its ESC, `[2J5` would be a wrong answer.
_CONTROL = re.compile(
    r"""
    \x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?   # a title or a link
    | \x1b\[[0-?]*+[\x20-/]*+[@-~]         # a colour, or a move of the cursor
    | [\x00-\x08\x0b\x0c\x0e-\x1f\x7f]     # any other control character
    """,
    re.VERBOSE,
)
# Zero width no-break space (a byte order mark), zero width space, word joiner.
_INVISIBLE = re.compile(r"[\ufeff\u200b\u2060]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # half of a pair, which neither UTF-8 nor Arrow holds
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b\u2060\ud800-\udfff\ufffd]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REPAIRS = (
    (re.compile("\r\n?"), "\n", "text: CRLF line ends written as LF"),
    (_CONTROL, "", "text: control characters taken out"),
    (_INVISIBLE, "", "text: invisible characters (U+FEFF, U+200B, U+2060) taken out"),
    (_SURROGATE, _REPLACEMENT, "text: half a surrogate pair replaced by U+FFFD"),
)


def prompt_for_system(which: str | None) -> str:
    """The text of a named system prompt, or the text itself; None and "none": none. DataError for a
    word that is no name.
    """
    if which and which not in SYSTEM_PROMPTS and len(which.split()) < 2:
        raise DataError(
            f"system_prompt = {which!r}",
            rule=f"a system prompt is one of {', '.join(SYSTEM_PROMPTS)}, or a text",
            remedy="choose a name, or write out the text",
        )
    return SYSTEM_PROMPTS.get(which, which) if which else ""


def examples_for(which: str | None) -> list[tuple[str, str]]:
    """The worked example of a named system prompt, as a list of one; DataError if it has none."""
    if which in EXAMPLES:
        return [EXAMPLES[which]]
    raise DataError(
        f"no worked example for system_prompt = {str(which)[:40]!r}",
        rule=f"an example ships for each of {', '.join(EXAMPLES)}",
        remedy="choose one of those, or give your own examples",
    )


def question(prompt: Prompt) -> str:
    """What a prompt asks: its last message, or its text."""
    try:
        return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    except (TypeError, LookupError):
        return str(prompt)


def to_messages(
    question: str,
    system: str = "",
    examples: Sequence[tuple[str, str]] = (),
    *,
    as_turns: bool = False,
) -> list[dict[str, str]]:
    """A question as chat messages. (question, answer) examples go into the system message (empty:
    none), or stand `as_turns`.
    """
    if examples and not as_turns:
        heading = "For example:" if len(examples) == 1 else "For examples:"
        told = "\n\n".join(f"{asked}\n{answered}" for asked, answered in examples)
        system = f"{system}\n\n{heading}\n\n{told}".strip()
    turns = [("system", system)] if system else []
    for asked, answered in examples if as_turns else ():
        turns += [("user", asked), ("assistant", answered)]
    return [{"role": role, "content": content} for role, content in (*turns, ("user", question))]


def is_picture(value: Any) -> bool:
    """Whether a value is a picture, or the path, address or bytes of one, or a list of them."""
    return _PICTURE.match(str(value)[:500]) is not None


def about_picture(text: str) -> bool:
    """Whether a question begins or ends with what stands for a picture."""
    return text.strip().startswith(_SEEN) or text.strip().endswith(_SEEN)


def comparable(prompt: Prompt, system: bool = True) -> str:
    """The form in which prompts are compared: any white space is one space; a lone question,
    without `system`, is its text.
    """
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    turns = [(message["role"], " ".join(message["content"].split())) for message in prompt]
    if not system:
        turns = [turn for turn in turns if turn[0] != "system"]
        if len(turns) == 1:
            return turns[0][1]
    return "\x1e".join(map("\x1f".join, turns))


def question_text(prompt: Prompt) -> str:
    """Everything that the user says in a prompt."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(one["content"] for one in prompt if one["role"] == "user")


class Cleaner:
    """Makes the values of one row plain. `oddities` is what it repaired (texts), and what it kept
    and suspects (reasons).
    """

    def __init__(self) -> None:
        self.oddities: list[str] = []

    def text(self, text: str) -> str:
        """`text` without what no tokenizer should get."""
        if _ODD.search(text) is None:
            return text
        text = self._repaired(text, _REPAIRS)
        if _REPLACEMENT in text:
            self.oddities.append(reasons.REPLACED)
        return text

    def encodable(self, text: str) -> str:
        """`text` without half surrogate pairs."""
        return self._repaired(text, _REPAIRS[-1:])

    def _repaired(self, text: str, repairs: Sequence[tuple[re.Pattern[str], str, str]]) -> str:
        for pattern, instead, rule in repairs:
            text, count = pattern.subn(instead, text)
            if count:
                self.oddities.append(rule)
        return text

    def column(self, name: str, value: Any) -> object:
        """A column's value in a form that JSON can hold: arrays as lists, numpy's numbers as
        numbers, dates and the like as text.
        """

        def odd(value: Any) -> Any:
            match value:
                case None:
                    return None
                case str():
                    return self.encodable(value)
                case set() | frozenset():
                    remedy = "write a list: a set has no order"
                    raise LeftOut(reasons.column_is(name, "is a set", remedy))
                case bytes() | bytearray():
                    kept, what = None, "bytes left out of the row"
                case _:
                    kept, what = str(value), reasons.becomes_text(type(value).__name__)
            self.oddities.append(f"column {name!r}: {what}")
            return kept

        return plain(value, odd)

    def messages(self, value: Any) -> list[dict[str, str]]:
        """`value` as chat messages that end where the policy begins, or LeftOut."""
        if value is None:
            raise LeftOut(reasons.NO_PROMPT)
        if isinstance(value, dict) and "content" in value:
            value = [value]
            self.oddities.append("prompt: a single message put into a list")
        if not isinstance(value, (list, tuple)) or not value:
            raise LeftOut(reasons.NO_MESSAGES)
        messages = [*map(self._message, value)]
        roles = [message["role"] for message in messages]
        if "system" in roles[1:]:
            raise LeftOut(reasons.LATE_SYSTEM)
        if roles[-1] == "assistant":
            raise LeftOut(reasons.ANSWERED)
        questions = [one["content"] for one in messages if one["role"] in ("user", "tool")]
        if not questions:
            raise LeftOut(reasons.NO_USER)
        if not questions[-1].strip():
            raise LeftOut(reasons.EMPTY)
        return messages

    def last_turn(self, value: Any) -> tuple[object, str | None]:
        """(a chat without the assistant's last turn, what that turn says); `value` itself and None
        where it ends otherwise.
        """
        if isinstance(value, (list, tuple)) and value:
            with contextlib.suppress(LeftOut):
                message = self._message(value[-1])
                if message["role"] == "assistant":
                    return value[:-1], message["content"]
        return value, None

    def _message(self, raw: Any) -> dict[str, str]:
        match raw:
            case {"role": role, "content": content}:
                pass
            case {"from": role, "value": content}:
                self.oddities.append("prompt: from/value messages written as role/content")
                raw = {}
            case _:
                raise LeftOut(reasons.NO_MESSAGE)
        folded = role.strip().lower() if isinstance(role, str) else ""
        known = folded if folded in ROLES else _OTHER_ROLES.get(folded)
        if known is None:
            raise LeftOut(reasons.NO_ROLE)
        if known != role:
            self.oddities.append(f"prompt: role {role!r} written as {known!r}")
        if isinstance(content, list):
            content = _joined(content)
            self.oddities.append("prompt: a list of text parts joined to one text")
        if not isinstance(content, str):
            raise LeftOut(reasons.NO_TEXT)
        return {**raw, "role": known, "content": self.text(content)}


def _joined(parts: Sequence[object]) -> str:
    texts = []
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                pictured = any("image" in str(each) for each in parts)
                raise LeftOut(reasons.PICTURE if pictured else reasons.NOT_ONLY_TEXT)
    return "".join(texts)
