"""Why a row was left out, or should be looked at, and what to do about it: every such text, in one place."""

from __future__ import annotations

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more

FILL_IN = "fill it in, or delete those rows"
FILL_IN_ANSWER = f"{FILL_IN}; or state that the task has no answers"
AS_MESSAGES = 'write messages as {"role": "user", "content": "..."}'
FROM_ITS_SOURCE = "get the text again from its source"


class Reason(str):
    """A text with its `remedy`."""

    remedy: str

    def __new__(cls, text: str, remedy: str = "correct or delete those rows") -> Reason:
        made = super().__new__(cls, text)
        made.remedy = remedy
        return made


class LeftOut(Exception):
    """A row that cannot be used, with the reason."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


class Findings:
    """What is to be said about one row, each thing once: the rules that repaired it, and what looks odd."""

    def __init__(self) -> None:
        self.repairs: dict[str, None] = {}
        self.warnings: dict[Reason, None] = {}

    def repaired(self, rule: str) -> None:
        self.repairs[rule] = None

    def warn(self, what: Reason) -> None:
        self.warnings[what] = None


# Lines and rows of files.
NOT_UTF8 = Reason("line is not UTF-8", "save the file as UTF-8")
NOT_JSON = Reason("line is not JSON", "correct or delete those lines")
TORN = Reason("last line is half-written", "the writer was cut off: write the file again, or delete that line")
TOO_DEEP = Reason("line is nested too deeply")
OPEN_QUOTE = Reason("a quote is opened and never closed", "close it; everything after it was read as one field")
FEWER_FIELDS = Reason("row has fewer fields than the header", "quote the fields that hold the separator")
MORE_FIELDS = Reason("row has more fields than the header", FEWER_FIELDS.remedy)
NOT_AN_OBJECT = Reason("row is not an object", 'write one object per row: {"prompt": ..., "answer": ...}')

# Prompts.
NO_PROMPT = Reason("no prompt", FILL_IN)
EMPTY = Reason("prompt is empty", FILL_IN)
NO_MESSAGES = Reason("prompt is neither text nor a list of messages", 'give a text, or a list of {"role", "content"} messages')
NO_MESSAGE = Reason("a message is not {role, content}", AS_MESSAGES)
NO_ROLE = Reason("a message's role is not one of system, user, assistant, tool", AS_MESSAGES)
NO_TEXT = Reason("a message's content is not text", AS_MESSAGES)
NOT_ONLY_TEXT = Reason("a message holds something other than text", AS_MESSAGES)
LATE_SYSTEM = Reason("a system message stands after the first", "move it to the front")
NO_USER = Reason("no message is the user's", "end the prompt with what the user asks")
ANSWERED = Reason(
    "the last message is the assistant's: nothing is left to generate",
    "take it as the right answer (--answer assistant, answer_column='assistant'), or cut it off",
)
TOO_LONG = Reason(f"prompt has more than {LONGEST_CHARACTERS} characters", "shorten it: no policy on one GPU reads so much")
MIXED = Reason("prompt is chat in some rows and text in others", "make all prompts chat messages, or all text")
DUPLICATE = Reason("prompt is a duplicate of an earlier row", "nothing: the first of them was kept")
CONTRADICTS = Reason(f"{DUPLICATE}, with another answer", "decide which answer is right; the first was kept")
CONTAMINATED = Reason("prompt is also in the other split", "nothing: in both, the evaluation would test memory")
OWN_SYSTEM = Reason(
    "prompt brings its own system message, which was kept instead of the one given",
    "check that it asks for the format that the rewards look for",
)
NO_EXAMPLE = Reason("prompt is chat already: no worked example was added", "write it into those prompts, or give them as text")
REPLACED = Reason("text holds U+FFFD: letters were lost when it was decoded", FROM_ITS_SOURCE)
MOJIBAKE = Reason("text looks like UTF-8 that was read as Windows-1252 (Ã©, â€™)", f"{FROM_ITS_SOURCE}, and read it as UTF-8")

# Answers.
NO_ANSWER = Reason("no answer", FILL_IN_ANSWER)
EMPTY_ANSWER = Reason("answer is empty", FILL_IN_ANSWER)
NO_TURN = Reason(
    "the last message is not the assistant's: there is no answer in it",
    "end the chat with the right answer as the assistant's turn, or delete those rows",
)
NO_NUMBER = Reason("answer is not a number", "correct those answers, or allow texts (without --numbers)")
PLACEHOLDER = Reason("answer is a placeholder (N/A, none, unknown, -), and the others are numbers", FILL_IN)
PLACEHOLDER_KEPT = Reason(
    "answer looks like a placeholder (N/A, none, unknown, -), and was kept as the right answer",
    f"fine if it is the right answer; otherwise {FILL_IN}",
)
MARKED = Reason(
    "answer contains ####, and all of it was kept",
    "if the answer is what follows the mark, say so: --answer-after '####' or answer_after",
)
LEAK = Reason("the prompt's last line says the answer", "take it out of the question: a policy that copies it learns nothing")
EARLIER = Reason("an earlier line of the prompt says the answer", "fine for a worked example; else the policy can copy it")
VERBATIM = Reason("the prompt contains the answer word for word", "fine for questions about a text; else the policy can copy it")


def answer_is(what: str) -> Reason:
    return Reason(f"answer is {what}", "write the answer as one text")


def unmarked(mark: str) -> Reason:
    remedy = "correct those answers, or state that the whole column is the answer (--answer-after none, answer_after=None)"
    return Reason(f"answer has no {mark}", remedy)


def column_is(column: str, what: str, remedy: str = "give it one kind of value in every row, or keep it as text") -> Reason:
    return Reason(f"column {column!r} {what}", remedy)


def reserved(column: str) -> Reason:
    return column_is(column, "is reserved by TRL", "rename the column")


def other_keys(column: str) -> Reason:
    remedy = "`datasets` gives every row all keys, the missing ones as None: keep such a column as JSON text"
    return column_is(column, "is an object with other keys than before", remedy)
