"""Chat messages and text as they come from the world: what can be repaired is, by a stated rule; the rest has a reason."""

from __future__ import annotations

import re
from typing import Any

from workbench.data import reasons

ROLES = ("system", "user", "assistant", "tool")
# As other chat formats call them.
_OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "developer": "system"}
_MISREAD = "Ã[\x80-\xbf‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€"
_ODD = re.compile(f"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b\u2060\ud800-\udfff\ufffd]|{_MISREAD}")
# A terminal's sequence goes as a whole: without its ESC, `[2J5` would be a wrong answer.
_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)?|\x1b\[[0-?]*+[ -/]*+[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INVISIBLE = re.compile("[\ufeff\u200b\u2060]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str, repairs: list[str], warnings: list[str]) -> str:
    """`text` without what no tokenizer should meet; each repair and each suspicion is added to its list."""
    if _ODD.search(text) is None:
        return text
    for pattern, instead, rule in (
        (re.compile("\r\n?"), "\n", "text: CRLF line ends written as LF"),
        (_CONTROL, "", "text: control characters taken out"),
        (_INVISIBLE, "", "text: invisible characters (U+FEFF, U+200B, U+2060) taken out"),
        (_SURROGATE, "\ufffd", "text: half a surrogate pair replaced by U+FFFD"),
    ):
        text, count = pattern.subn(instead, text)
        if count and rule not in repairs:
            repairs.append(rule)
    if "\ufffd" in text and reasons.REPLACED not in warnings:
        warnings.append(reasons.REPLACED)
    if re.search(_MISREAD, text) and reasons.MOJIBAKE not in warnings:
        warnings.append(reasons.MOJIBAKE)
    return text


def whole(text: str, repairs: list[str]) -> str:
    """`text` without half surrogate pairs, which neither UTF-8 nor Arrow can hold."""
    if _SURROGATE.search(text) is None:
        return text
    _once(repairs, "text: half a surrogate pair replaced by U+FFFD")
    return _SURROGATE.sub("\ufffd", text)


def plain(column: str, value: Any, repairs: list[str]) -> Any:
    """A column's value as JSON can hold it: arrays as lists, numpy's numbers as numbers, dates and the like as text."""
    kind = type(value)
    if kind is str:
        return whole(value, repairs)
    if value is None or kind is int or kind is bool:
        return value
    if kind is float:
        return value if value == value else None  # not a number: there is no value
    if kind is list or kind is tuple:
        return [plain(column, inner, repairs) for inner in value]
    if kind is dict:
        return {str(key): plain(column, inner, repairs) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        return plain(column, value.tolist(), repairs)
    if isinstance(value, (bytes, bytearray)):
        _once(repairs, f"column {column!r}: bytes left out of the row")
        return None
    _once(repairs, f"column {column!r}: {type(value).__name__} written as text")
    return str(value)


def messages_of(value: Any, repairs: list[str], warnings: list[str]) -> tuple[list[dict[str, str]], str | None]:
    """(`value` as chat messages that end where the policy begins, the reason why it cannot be)."""
    if value is None:
        return [], "no prompt"
    if isinstance(value, dict) and "content" in value:
        value = [value]
        repairs.append("prompt: a single message put into a list")
    if not isinstance(value, (list, tuple)) or not value:
        return [], "prompt is neither text nor a list of messages"
    messages = []
    for place, raw in enumerate(value):
        message, reason = _message(raw, repairs, warnings)
        if reason is None and message["role"] == "system" and place:
            reason = "a system message stands after the first"
        if reason is not None:
            return [], reason
        messages.append(message)
    if messages[-1]["role"] == "assistant":
        return [], "the last message is the assistant's: nothing is left to generate"
    asked = [message for message in messages if message["role"] in ("user", "tool")]
    if not asked:
        return [], "no message is the user's"
    return messages, None if asked[-1]["content"].strip() else reasons.EMPTY


def last_turn(value: Any, repairs: list[str], warnings: list[str]) -> tuple[Any, str | None]:
    """(a chat without the assistant's last turn, what that turn says); `value` itself and None where it ends otherwise."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and value:
        message, reason = _message(value[-1], repairs, warnings)
        if reason is None and message["role"] == "assistant":
            return value[:-1], message["content"]
    return value, None


def _message(raw: Any, repairs: list[str], warnings: list[str]) -> tuple[dict[str, str], str | None]:
    if not isinstance(raw, dict):
        return {}, "a message is not {role, content}"
    if "from" in raw and "value" in raw and "role" not in raw:
        raw = {"role": raw["from"], "content": raw["value"]}
        _once(repairs, "prompt: from/value messages written as role/content")
    if "role" not in raw or "content" not in raw:
        return {}, "a message is not {role, content}"
    role, content = raw["role"], raw["content"]
    if isinstance(role, str) and role not in ROLES:
        known = role.strip().lower()
        known = _OTHER_ROLES.get(known, known)
        if known in ROLES:
            _once(repairs, f"prompt: role {role!r} written as {known!r}")
            role = known
    if not isinstance(role, str) or role not in ROLES:
        return {}, f"a message's role is not one of {', '.join(ROLES)}"
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        ):
            return {}, "a message holds something other than text"
        content = "".join(part["text"] for part in content)
        _once(repairs, "prompt: a list of text parts joined to one text")
    if not isinstance(content, str):
        return {}, "a message's content is not text"
    return {**raw, "role": role, "content": clean(content, repairs, warnings)}, None


def _once(found: list[str], rule: str) -> None:
    if rule not in found:
        found.append(rule)


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
