"""What a policy's chat template makes of a prompt: its tokens, and what in it makes a reward
impossible to earn; and what it wraps a tool call in.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from workbench.base.errors import DataError
from workbench.base.kinds import Fields, Prompt, Tokenizer
from workbench.data.rendering import prompt_text, render
from workbench.run.calls import Markers

_TAG = re.compile(r"<([A-Za-z_]\w*)>")
_CALL_TAG = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_]{2,40}\]")
_ROLES = {"system", "user", "assistant", "developer", "model"}
# tags that templates of reasoning models write by themselves
_KNOWN = {"think", "thinking", "thought", "reasoning", "answer"}


class Token(NamedTuple):
    """One token of the rendered prompt, with the piece of the text that it stands for."""

    id: int
    text: str
    special: bool


@dataclass
class TemplateCard:
    """What a chat template makes of a prompt. `problems` says in words what would go wrong in
    training.
    """

    text: str
    # their texts, joined, are `text` up to the last token (and what the tokenizer adds before it)
    tokens: list[Token]
    chat: bool
    survives: dict[str, bool]  # tag -> is still there after the trainer has decoded a completion
    eos_tokens: dict[int, str]  # id -> text of the tokens that end a completion
    # the template closes the assistant's turn with one of them; None: no chat template
    ends_turns: bool | None = None
    prefilled: str | None = None  # tag that the generation prompt writes by itself
    keeps_system: bool | None = None  # the system message is in the text; None: there is none
    doubled_bos: bool = False
    problems: list[str] = field(default_factory=list)
    closed: bool = False  # the generation prompt also closes that tag
    # what the template writes between the generation prompt and an assistant's words
    begins: str = ""
    thinks: str | None = None  # tag that completions of such a model begin with by themselves
    adds: str = ""  # words of the template's own: a default system message, dates
    opening: str = ""  # the generation prompt
    tools_tokens: int = 0  # of `tokens`, how many the task's tools take


def tags_in(prompt: Any) -> tuple[str, ...]:
    """The tags that a prompt's system message (or the text itself) asks for, as ("<think>",
    "</think>").
    """
    text = prompt
    if not isinstance(prompt, str):
        text = prompt[0]["content"] if prompt[0]["role"] == "system" else ""
    names = dict.fromkeys(name for name in _TAG.findall(text) if f"</{name}>" in text)
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


def ids_that_end(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end a completion: those of the model, where the tokenizer came with one; else
    the tokenizer's EOS.
    """
    ids = getattr(tokenizer, "eos_ids", None) or [tokenizer.eos_token_id]
    return [each for each in ids if each in range(len(tokenizer))]  # a config may name others


def turn_end(tokenizer: Any, prompt: Prompt) -> int | None:
    """The completion-ending token with which the template closes the assistant's turn; None: none,
    or a plain prompt.
    """
    if isinstance(prompt, str):
        return None
    after = _around_words(tokenizer, prompt)[1].lstrip()
    texts = {each: tokenizer.convert_ids_to_tokens(each) for each in ids_that_end(tokenizer)}
    return next((each for each, text in texts.items() if after.startswith(text)), None)


def _around_words(tokenizer: Tokenizer, prompt: Sequence[Fields]) -> tuple[str, str]:
    # What stands before the words of an assistant that has answered, and after them.
    words = "the policy's own words"
    answered = [*prompt, {"role": "assistant", "content": words}]
    before, _, after = render(answered, tokenizer, add_generation_prompt=False).rpartition(words)
    return before, after


def template_card(
    tokenizer: Tokenizer, prompt: Prompt, tags: Sequence[str] | None = None
) -> TemplateCard:
    """Render a prompt (chat messages or text) and check what matters; DataError if the template
    refuses it.

    Args:
        tags: what the reward functions look for in completions; None: what the system message asks
            for.
    """
    chat = not isinstance(prompt, str)
    tags = tags_in(prompt) if tags is None else tags
    text = prompt_text(prompt, tokenizer)
    tokens = _tokens(tokenizer, text, chat)
    bos = tokenizer.bos_token_id
    ends = ids_that_end(tokenizer)
    card = TemplateCard(
        text=text,
        tokens=tokens,
        chat=chat,
        survives={tag: tag in _decoded(tokenizer, f"x{tag}y") for tag in tags},
        eos_tokens=dict(zip(ends, tokenizer.convert_ids_to_tokens(ends), strict=True)),
        doubled_bos=bos is not None and [token.id for token in tokens[:2]] == [bos, bos],
    )
    if chat:
        _look_at_turns(card, tokenizer, prompt, tags)
    card.problems += [problem for there, problem in _problems(tokenizer, card, tags) if there]
    return card


def _decoded(tokenizer: Any, text: str) -> str:
    # As the trainer decodes a completion.
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids, skip_special_tokens=True)


def _look_at_turns(
    card: TemplateCard, tokenizer: Tokenizer, prompt: Any, tags: Sequence[str]
) -> None:
    # Calls of tools have no words, and pictures are none.
    words = [
        (message["role"], message["content"].strip())
        for message in prompt
        if isinstance(message.get("content"), str) and message["content"].strip()
    ]
    text = card.text
    before, _ = _around_words(tokenizer, prompt)
    without = render(prompt, tokenizer, add_generation_prompt=False)
    card.opening = text[len(without) :] if text.startswith(without) else text[-60:]
    card.begins = before.removeprefix(text) if before.startswith(text) else ""
    wanted = _KNOWN | {tag.strip("</>") for tag in tags}

    def first_tag(piece: str) -> str | None:
        return next((name for name in _TAG.findall(piece) if name in wanted), None)

    card.prefilled = first_tag(card.opening)
    card.closed = bool(card.prefilled) and f"</{card.prefilled}>" in card.opening
    card.thinks = first_tag(card.begins)
    if _switched(tokenizer) and words and not (card.prefilled or card.thinks):
        quiet = render(prompt, tokenizer, add_generation_prompt=True, enable_thinking=False)
        card.thinks = first_tag(quiet.rpartition(words[-1][1])[2])
    card.ends_turns = turn_end(tokenizer, prompt) is not None
    changed = {role: change for role, content in words if (change := _change(content, text))}
    if prompt[0]["role"] == "system" and prompt[0]["content"]:
        card.keeps_system = "system" not in changed
    for role, change in changed.items():
        with_it = ", and the format asked for with it" if role == "system" else ""
        card.problems.append(f"the {role} message {change}{with_it}")
    if getattr(tokenizer, "chat_template_kwargs", {}).get("tools"):  # whose words are the task's
        text = render(prompt, tokenizer, add_generation_prompt=True, tools=None)
        card.tools_tokens = len(card.tokens) - len(_tokens(tokenizer, text, chat=True))
    card.adds = _words_of_its_own(tokenizer, [content for _, content in words], text)


def _switched(tokenizer: Tokenizer) -> bool:
    return "enable_thinking" in str(tokenizer.chat_template)


def _problems(
    tokenizer: Tokenizer, card: TemplateCard, tags: Sequence[str]
) -> Iterator[tuple[object, str]]:
    """(whether it is there, in words) of each problem that a template can have, the gravest
    first.
    """
    piece, back = misread(tokenizer, card.text)
    yield piece, f"the tokenizer does not give the text back: {piece!r} becomes {back!r}"
    lost = " ".join(tag for tag in tags if not card.survives[tag])
    yield (
        lost,
        f"{lost}: special tokens, which vanish when the trainer decodes a completion, so a"
        " reward that looks for them can never pay; use tags that are plain text",
    )
    yield (
        not card.eos_tokens,
        "the tokenizer has no EOS token: the policy cannot end its turn, and every completion is"
        " cut",
    )
    yield (
        card.eos_tokens and card.ends_turns is False,
        "the template closes the assistant's turn with none of the tokens that end a completion"
        f" ({', '.join(card.eos_tokens.values())}): a policy trained on it may end its turn with"
        " another token, and its completions then run to the limit",
    )
    written = f"<{card.prefilled}>"
    yield (
        card.prefilled and not card.closed,
        f"the template writes {written} by itself: completions begin after it, so a reward that"
        f" wants to see {written} in the completion can never pay",
    )
    yield (
        card.closed and written in tags,
        f"the template opens and closes {written} by itself: completions begin after it, and"
        f" need no {written}, so a reward that wants to see it pays only where the policy writes"
        " another",
    )
    off = ""
    if _switched(tokenizer):
        off = '; chat_template_kwargs = {"enable_thinking": False} turns that off'
    yield (
        card.thinks and tags and f"<{card.thinks}>" not in tags,
        f"the model begins its completions with <{card.thinks}> by itself, so a reward that wants"
        f" them to begin with {''.join(tags[:1])} does not pay{off}",
    )
    yield (
        card.opening and any(token in card.begins for token in tokenizer.all_special_tokens),
        f"an assistant's words come after {card.begins!r}, of which decoding leaves"
        f" {_decoded(tokenizer, card.begins)!r}, as the rest are special tokens: a reward that"
        " wants a completion to begin with a tag can never pay",
    )
    yield (
        card.chat and not card.opening and card.begins.strip(),
        "the template writes no generation prompt: the policy has to begin its own turn, and may"
        " continue the user's",
    )
    yield card.doubled_bos, "the text begins with two BOS tokens"
    dated = card.chat and _dated(tokenizer, card.text)
    yield dated, "the template writes today's date: tomorrow the same prompt is a different text"
    no_pad = tokenizer.pad_token is None
    yield no_pad, "the tokenizer has no padding token; trainers then pad with EOS"


def misread(tokenizer: Any, text: str) -> tuple[str, str]:
    """(a line of the text, what is left of it once it was encoded and decoded), for the first that
    changes; else two "".

    White space beside special tokens does not count: some are made to absorb it.
    """
    added = sorted(filter(None, tokenizer.get_added_vocab()), key=len, reverse=True)
    for piece in re.split("|".join(map(re.escape, added)) or "$^", text):
        ids = tokenizer(piece, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        lines = (part.strip().split("\n") for part in (piece, back))
        for line, other in itertools.zip_longest(*lines, fillvalue=""):
            if line != other:
                return line[:60], other[:60]
    return "", ""


def _change(content: str, text: str) -> str:
    # What a template has done to a message, in words; "": it is in the text.
    if content in text:
        return ""
    if " ".join(content.split()) in " ".join(text.split()):
        return "has other white space in the text: the template changes it"
    gone = [tag for tag in dict.fromkeys(re.findall(r"</?\w+>", content)) if tag not in text]
    without = f" (without {' '.join(gone)})" if gone else ""
    return f"is not in the text: the template drops or changes it{without}"


def _words_of_its_own(tokenizer: Tokenizer, contents: Sequence[str], text: str) -> str:
    for known in (*contents, *tokenizer.get_added_vocab()):
        text = text.replace(known, "\0") if known else text
    pieces = [" ".join(piece.split()) for piece in text.split("\0") if piece.strip() not in _ROLES]
    words = " ".join(pieces).split()
    return " ".join(words) if sum(map(str.isalpha, words)) > 2 else ""


def _dated(tokenizer: Tokenizer, text: str) -> bool:
    forms = re.findall(r"strftime_now\(\s*(['\"])(.+?)\1", str(tokenizer.chat_template))
    return any(datetime.now().strftime(form) in text for _, form in forms)


def _tokens(tokenizer: Any, text: str, chat: bool) -> list[Token]:
    special = set(tokenizer.all_special_ids)
    fast = tokenizer.is_fast
    encoded = tokenizer(text, add_special_tokens=not chat, return_offsets_mapping=fast)
    ids = encoded["input_ids"]
    # A character can take several tokens, and a token alone can lose its space: so the text is cut,
    # not put together.
    ends = [end for _, end in encoded["offset_mapping"]] if fast else [0] * len(ids)
    tokens = []
    done = 0
    for number, end in zip(ids, ends, strict=True):
        piece = text[done : max(done, end)] if end else tokenizer.decode([number])
        tokens.append(Token(number, piece, number in special))
        done = max(done, end)
    return tokens


def markers_of(tokenizer: Any) -> Markers | None:
    """What a tokenizer's chat template wraps a call in; None: it has no call, or no tags around
    it.
    """
    function = {"name": "name_of_the_tool", "arguments": {"argument": "value"}}
    asked = [{"role": "user", "content": "?"}]
    said = {"role": "assistant", "content": ""}
    said["tool_calls"] = [{"type": "function", "function": function}]
    try:
        before = render(asked, tokenizer, add_generation_prompt=True)
        whole = render([*asked, said], tokenizer, add_generation_prompt=False)
    except (DataError, TypeError):  # it refuses calls, or their arguments as an object
        return None
    call = whole[len(os.path.commonprefix([before, whole])) :]  # noqa: RUF071  they are texts
    opened, _, after = call.partition(function["name"])
    tags = list(_CALL_TAG.finditer(opened))
    if not after or not tags:
        return None
    tag, closing = tags[-1][0], tags[-1][0].replace("<", "</", 1)
    lines = [line.strip() for line in str(tokenizer.chat_template).splitlines() if tag in line]
    return Markers(
        tag,
        closing if closing in after else "",
        lines[-1][:200] if lines else "",
        "{" in opened[tags[-1].end() :],
    )
