"""The template card: the exact text that the model will see, and what of it can make a reward impossible to earn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from workbench.dataset.lengths import prompt_text

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_PREFILLED = re.compile(r"<([A-Za-z_]\w*)>\s*$")


class Token(NamedTuple):
    """One token of the rendered prompt."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class TemplateCard:
    """What a chat template makes of a prompt. `problems` says in words what would go wrong in training."""

    text: str
    tokens: list[Token]
    chat: bool
    survives: dict[str, bool]  # tag -> is still there after the trainer has decoded a completion
    eos_token: str | None
    pad_token: str | None
    ends_turns: bool | None  # the template closes the assistant's turn with the EOS token; None: no chat template
    prefilled: str | None  # tag that the generation prompt opens by itself
    keeps_system: bool | None  # the system message is in the text; None: there is none
    doubled_bos: bool
    problems: list[str] = field(default_factory=list)


def template_card(tokenizer: Any, prompt: Any, tags: Sequence[str] = TAGS) -> TemplateCard:
    """Render a prompt and look at what matters.

    Args:
        tokenizer: the policy's.
        prompt: chat messages or text.
        tags: what the reward functions look for in completions.
    """
    chat = not isinstance(prompt, str)
    text = prompt_text(prompt, tokenizer)
    special = set(tokenizer.all_special_ids)
    ids = tokenizer(text, add_special_tokens=not chat)["input_ids"]
    tokens = [Token(number, tokenizer.decode([number]), number in special) for number in ids]
    survives = {tag: tag in _decoded(tokenizer, f"x{tag}y") for tag in tags}
    system = prompt[0]["content"] if chat and prompt[0]["role"] == "system" else None
    found = _PREFILLED.search(text) if chat else None
    bos = tokenizer.bos_token_id
    card = TemplateCard(
        text=text,
        tokens=tokens,
        chat=chat,
        survives=survives,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        ends_turns=_ends_turns(tokenizer, prompt) if chat else None,
        prefilled=found.group(1) if found else None,
        keeps_system=None if not system else system.strip() in text,
        doubled_bos=bos is not None and len(ids) > 1 and ids[0] == bos and ids[1] == bos,
    )
    card.problems.extend(_problems(card))
    return card


def _decoded(tokenizer: Any, completion: str) -> str:
    ids = tokenizer(completion, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids, skip_special_tokens=True)


def _ends_turns(tokenizer: Any, prompt: Any) -> bool:
    probe = "the policy's own words"
    whole = tokenizer.apply_chat_template([*prompt, {"role": "assistant", "content": probe}], tokenize=False)
    after = whole.rpartition(probe)[2].lstrip()
    return bool(tokenizer.eos_token) and after.startswith(tokenizer.eos_token)


def _problems(card: TemplateCard) -> list[str]:
    found = []
    lost = [tag for tag, survives in card.survives.items() if not survives]
    if lost:
        found.append(
            f"{' '.join(lost)}: special tokens, which vanish when the trainer decodes a completion, so a reward "
            "that looks for them can never pay; use tags that are plain text"
        )
    if card.eos_token is None:
        found.append("the tokenizer has no EOS token: the policy cannot end its turn, and every completion is cut")
    elif card.ends_turns is False:
        found.append(
            f"the template does not close the assistant's turn with EOS ({card.eos_token}): a policy trained on it "
            "may end its turn with another token, and its completions then run to the limit"
        )
    if card.prefilled:
        found.append(
            f"the template opens <{card.prefilled}> by itself: completions begin inside it, so a reward that wants "
            f"to see <{card.prefilled}> in the completion can never pay"
        )
    if card.keeps_system is False:
        found.append(
            "the system message is not in the text: the template drops or changes it, and with it the format asked for"
        )
    if card.doubled_bos:
        found.append("the text begins with two BOS tokens")
    if card.pad_token is None:
        found.append("the tokenizer has no padding token; trainers then pad with EOS")
    return found
