"""Chat messages and text as they come from the world: repaired by stated rules, or left out with a reason."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from workbench.data import reasons
from workbench.data.reasons import Findings, LeftOut

ROLES = ("system", "user", "assistant", "tool")
# As other chat formats call them.
_OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "developer": "system"}
_MISREAD = "Ã[\x80-\xbf‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€"
_ODD = re.compile(f"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b\u2060\ud800-\udfff\ufffd]|{_MISREAD}")
# A terminal's sequence goes as a whole: without its ESC, `[2J5` would be a wrong answer.
_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?|\x1b\[[0-?]*+[ -/]*+[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INVISIBLE = re.compile("[\ufeff\u200b\u2060]")
_SURROGATE = re.compile("[\ud800-\udfff]")


_REPAIRS = (
    (re.compile("\r\n?"), "\n", "text: CRLF line ends written as LF"),
    (_CONTROL, "", "text: control characters taken out"),
    (_INVISIBLE, "", "text: invisible characters (U+FEFF, U+200B, U+2060) taken out"),
    (_SURROGATE, "\ufffd", "text: half a surrogate pair replaced by U+FFFD"),
)


def clean(text: str, found: Findings) -> str:
    """`text` without what no tokenizer should meet; each repair and each suspicion is added to `found`."""
    if _ODD.search(text) is None:
        return text
    for pattern, instead, rule in _REPAIRS:
        text, count = pattern.subn(instead, text)
        if count:
            found.repaired(rule)
    if "\ufffd" in text:
        found.warn(reasons.REPLACED)
    if re.search(_MISREAD, text):
        found.warn(reasons.MOJIBAKE)
    return text


def whole(text: str, found: Findings) -> str:
    """`text` without half surrogate pairs, which neither UTF-8 nor Arrow can hold."""
    if _SURROGATE.search(text) is None:
        return text
    found.repaired(_REPAIRS[-1][2])
    return _SURROGATE.sub("\ufffd", text)


def plain(column: str, value: Any, found: Findings) -> Any:
    """A column's value as JSON can hold it: arrays as lists, numpy's numbers as numbers, dates and the like as text."""
    kind = type(value)
    if kind is str:
        return whole(value, found)
    if value is None or kind is int or kind is bool:
        return value
    if kind is float:
        return value if value == value else None  # NaN: there is no value
    if kind is list or kind is tuple:
        return [plain(column, inner, found) for inner in value]
    if kind is dict:
        return {str(key): plain(column, inner, found) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        return plain(column, value.tolist(), found)
    if isinstance(value, (bytes, bytearray)):
        found.repaired(f"column {column!r}: bytes left out of the row")
        return None
    found.repaired(f"column {column!r}: {kind.__name__} written as text")
    return str(value)


def messages_of(value: Any, found: Findings) -> list[dict[str, str]]:
    """`value` as chat messages that end where the policy begins.

    Raises:
        LeftOut: if it cannot be.
    """
    if value is None:
        raise LeftOut(reasons.NO_PROMPT)
    if isinstance(value, dict) and "content" in value:
        value = [value]
        found.repaired("prompt: a single message put into a list")
    if not isinstance(value, (list, tuple)) or not value:
        raise LeftOut(reasons.NO_MESSAGES)
    messages = [_message(raw, found) for raw in value]
    if any(message["role"] == "system" for message in messages[1:]):
        raise LeftOut(reasons.LATE_SYSTEM)
    if messages[-1]["role"] == "assistant":
        raise LeftOut(reasons.ANSWERED)
    asked = [message for message in messages if message["role"] in ("user", "tool")]
    if not asked or not asked[-1]["content"].strip():
        raise LeftOut(reasons.EMPTY if asked else reasons.NO_USER)
    return messages


def last_turn(value: Any, found: Findings) -> tuple[Any, str | None]:
    """(a chat without the assistant's last turn, what that turn says); `value` itself and None where it ends otherwise."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and value:
        with contextlib.suppress(LeftOut):
            message = _message(value[-1], found)
            if message["role"] == "assistant":
                return value[:-1], message["content"]
    return value, None


def _message(raw: Any, found: Findings) -> dict[str, str]:
    if isinstance(raw, dict) and "from" in raw and "value" in raw and "role" not in raw:
        raw = {"role": raw["from"], "content": raw["value"]}
        found.repaired("prompt: from/value messages written as role/content")
    if not isinstance(raw, dict) or "role" not in raw or "content" not in raw:
        raise LeftOut(reasons.NO_MESSAGE)
    role, content = raw["role"], raw["content"]
    if isinstance(role, str) and role not in ROLES:
        known = role.strip().lower()
        known = _OTHER_ROLES.get(known, known)
        if known in ROLES:
            found.repaired(f"prompt: role {role!r} written as {known!r}")
            role = known
    if not isinstance(role, str) or role not in ROLES:
        raise LeftOut(reasons.NO_ROLE)
    if isinstance(content, list):
        if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
            raise LeftOut(reasons.NOT_ONLY_TEXT)
        content = "".join(part["text"] for part in content)
        found.repaired("prompt: a list of text parts joined to one text")
    if not isinstance(content, str):
        raise LeftOut(reasons.NO_TEXT)
    return {**raw, "role": role, "content": clean(content, found)}


def comparable(prompt: Any, system: bool = True) -> str:
    """What two prompts are compared by: their messages, with every run of white space as one space.

    Args:
        system: False leaves system messages out, and a single question reads the same as chat and as text.
    """
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    told = [message for message in prompt if system or message["role"] != "system"]
    if len(told) == 1 and not system:
        return " ".join(told[0]["content"].split())
    return "\x1e".join(f"{message['role']}\x1f{' '.join(message['content'].split())}" for message in told)


def question_text(prompt: Any) -> str:
    """Everything that the user says in a prompt."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt if message["role"] == "user")
