"""Why a row was left out, or should be looked at, and what to do about it: every such text, in one place."""

from __future__ import annotations

NOT_AN_OBJECT = "row is not an object"
EMPTY = "prompt is empty"
MIXED = "prompt is chat in some rows and text in others"
NO_NUMBER = "answer is no number"
LEAK = "the prompt's last line says the answer"
EARLIER = "an earlier line of the prompt says the answer"
MARKED = "answer contains ####, and all of it was kept"
VERBATIM = "the prompt contains the answer word for word"
DUPLICATE = "prompt is a duplicate of an earlier row"
CONTRADICTS = "prompt is a duplicate of an earlier row, with another answer"
NO_TURN = "the last message is not the assistant's: there is no answer in it"
PLACEHOLDER = "answer is a placeholder (N/A, none, unknown, -), and the others are numbers"
PLACEHOLDER_KEPT = "answer looks like a placeholder (N/A, none, unknown, -), and was kept as the right answer"
CONTAMINATED = "prompt is also in the other split"
OWN_SYSTEM = "prompt brings a system message of its own, which was kept instead of the one given"
NO_EXAMPLE = "prompt is chat already: no worked example was added"
REPLACED = "text holds U+FFFD: letters were lost when it was decoded"
MOJIBAKE = "text looks like UTF-8 that was read as Windows-1252 (Ã©, â€™)"


def reserved(column: str) -> str:
    return f"column {column!r} is reserved by TRL"


def too_long(characters: int) -> str:
    return f"prompt has more than {characters} characters"


def unmarked(mark: str) -> str:
    return f"answer has no {mark}"


def other_kind(column: str, kind: str, known: str) -> str:
    return f"column {column!r} is {kind}, and {known} in earlier rows"


def too_large(column: str) -> str:
    return f"column {column!r} holds a whole number beyond 64 bits"


def other_keys(column: str) -> str:
    return f"column {column!r} is an object with other keys than before"


_REMEDIES = {
    "line is not UTF-8": "save the file as UTF-8",
    "line is not JSON": "correct or delete those lines",
    "last line is half-written": "the writer was cut off: write the file again, or delete that line",
    "a quote is opened": "close the quote; everything after it was read as one field",
    "row has": "quote the fields that hold the separator",
    NOT_AN_OBJECT: 'write one object a row: {"prompt": ..., "answer": ...}',
    "no prompt": "fill it in, or delete those rows",
    EMPTY: "fill it in, or delete those rows",
    "prompt is neither": 'give a text, or a list of {"role", "content"} messages',
    "a message": 'write messages as {"role": "user", "content": "..."}',
    "no message": "end the prompt with what the user asks",
    NO_TURN: "end the chat with the right answer as the assistant's turn, or delete those rows",
    "the last message": "take it as the right answer (--answer assistant, answer_column='assistant'), or cut it off",
    PLACEHOLDER: "fill it in, or delete those rows",
    PLACEHOLDER_KEPT: "fine if it is the right answer; otherwise fill it in, or delete those rows",
    "a system message": "move it to the front",
    MIXED: "make all prompts chat messages, or all text",
    "prompt has more": "shorten them: no policy that fits one GPU reads so much",
    "no answer": "fill it in, or delete those rows; or say that the task has no answers",
    "answer has no": "correct those answers, or say that the whole column is the answer (--answer-after none, answer_after=None)",
    NO_NUMBER: "correct those answers, or allow texts (without --numbers)",
    "answer is empty": "fill it in, or delete those rows; or say that the task has no answers",
    "answer is": "write the answer as one text",
    LEAK: "take it out of the question: a policy that copies it learns nothing",
    EARLIER: "fine for a worked example; otherwise the policy can copy it",
    MARKED: "if the answer is what stands after it, say so: --answer-after '####' or answer_after",
    VERBATIM: "fine for questions about a text; otherwise the policy can copy it",
    DUPLICATE: "nothing: the first of them was kept",
    CONTRADICTS: "decide which answer is right; the first was kept",
    CONTAMINATED: "nothing: it was kept in one split only, or the measurement would be of memory",
    OWN_SYSTEM: "check that it asks for the format that the rewards look for",
    NO_EXAMPLE: "write the example into those prompts, or give them as text",
    REPLACED: "get the text again from its source",
    MOJIBAKE: "get the text again from its source, and read it as UTF-8",
    "column": "give the column one kind of value in every row, or keep it as text",
}


def remedy(reason: str) -> str:
    """What to do about a reason."""
    if reason.endswith("is reserved by TRL"):
        return "rename the column"
    if reason.endswith("other keys than before"):
        return "`datasets` gives every row all keys, the missing ones as None: keep such a column as JSON text"
    exact = _REMEDIES.get(reason)
    return exact or next(
        (text for start, text in _REMEDIES.items() if reason.startswith(start)), "correct or delete those rows"
    )
