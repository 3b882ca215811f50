"""One completion token by token: how likely the base and the trained policy find each, and where
the two diverge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.base.errors import RunError
from workbench.base.kinds import Tokenizer
from workbench.base.printable import printable
from workbench.data.rendering import prompt_text
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place
from workbench.training.plan.loading import eos_ids
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import logprobs_of


@dataclass(frozen=True, repr=False)
class TokenView:
    """A completion of T tokens; a cell shades each by its KL. Arrays are [T]; log-probabilities are
    natural. Of tokens that are bytes of one character, the first has the character and the others
    are "".
    """

    title: str
    tokens: list[str]
    base: np.ndarray
    trained: np.ndarray
    advantage: float
    note: str = ""

    @property
    def kl(self) -> np.ndarray:
        """[T] KL divergence of the trained policy from the base, as TRL estimates it (k3).

        Their mean is the `kl` that TRL logs, if the adapter is the one that wrote the completion.
        """
        apart = self.base - self.trained
        return np.exp(apart) - apart - 1

    @property
    def verdict(self) -> str:
        """Title, KL, and the token on which the two differ most."""
        most = int(np.argmax(self.kl))
        before, now = np.exp([self.base[most], self.trained[most]])
        text = next(text for text in self.tokens[most::-1] if text or not most)
        line = (
            f"{self.title}, advantage {self.advantage:+.2f}: KL per token {self.kl.mean():.3g},"
            f" largest at {text!r} (probability {before:.2g} under the base,"
            f" {now:.2g} trained)"
        )
        return f"{line}\n{self.note}" if self.note else line

    def __str__(self) -> str:
        lines = [self.verdict, f"{'token':>16} {'base':>8} {'trained':>8} {'KL':>8}"]
        for text, base, trained, kl in zip(self.tokens, self.base, self.trained, self.kl):
            shown = repr(text) if text else "(its next byte)"
            lines.append(f"{shown:>16} {base:8.3f} {trained:8.3f} {kl:8.4f}")
        return printable("\n".join(lines))

    __repr__ = __str__


def texts_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as the text reads, with its spaces; bytes of one character as in `TokenView`."""
    texts = [""] * len(ids)
    begin = 0
    for place in range(len(ids)):
        # After the token before it: alone, some tokenizers drop a space that a token begins with.
        known = [*ids[max(0, begin - 1) : begin]]
        before, text = (
            str(tokenizer.decode(each)) for each in (known, [*known, *ids[begin : place + 1]])
        )
        text = text[len(before) :]
        if not text.endswith("\ufffd") or place == len(ids) - 1:
            texts[begin] = text
            begin = place + 1
    return texts


def token_view(
    run: RunDirectory,
    step: int | None = None,
    index: int | None = None,
    generation: int | None = None,
    *,
    policy: Policy | None = None,
) -> TokenView:
    """A recorded completion under the base and under the trained policy: log-probabilities and KL,
    token by token.

    >>> view = wb.inspection.token_view(wb.open_run())
    >>> len(view.tokens) == len(view.kl)
    True

    Args:
        step, index: the group, as for `explain_group`.
        generation: of the group's completions, from 0 in the order of the record; None: the one
            that learnt most.
        policy: the trained policy, if already loaded; None: loaded with the checkpoint of the step
            before, which wrote the completion, where there is one; else with the run's newest
            adapter, and a note says so.

    Raises:
        RunError: if the run recorded no such completion, or has no adapter.
    """
    batch, place = batch_and_place(run, step, index)
    size = batch.num_generations
    if generation is None:
        generation = int(np.argmax(np.abs(np.nan_to_num(batch.group(place).advantages))))
    if not 0 <= generation < size:
        raise RunError(
            f"generation = {generation}",
            rule=f"a group of this run has {size} completions, counted from 0",
            remedy=f"choose 0 to {size - 1}",
        )
    if batch.turns:
        raise RunError(
            f"step {batch.step}: its rollouts have several turns",
            rule="tokens are read again from a completion of one turn",
            remedy="explain_group shows the rollout turn by turn",
        )
    at = place * size + generation
    notes, wrote = [], run.checkpoints / f"checkpoint-{batch.step - 1}"
    if policy is None:
        if not wrote.is_dir():
            notes.append(
                "under the newest adapter, not the one that wrote it: no checkpoint of step"
                f" {batch.step - 1}"
            )
        policy = load_policy(run.recipe(), adapter=wrote if wrote.is_dir() else run.adapter)
    tokenizer, prompt = policy.tokenizer, batch.prompts[at]
    text = prompt_text(prompt, tokenizer)
    asked = tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"]
    ids = tokenizer(batch.completions[at], add_special_tokens=False)["input_ids"]
    temperature = run.manifest()["settings"]["in_force"].get("temperature") or 1.0
    ends, ended = eos_ids(policy), batch.finished is None or batch.finished[at]
    if ended and not {*ids[-1:]} & {*ends}:
        if len(ends) > 1:
            with policy.generating() as model:
                likely = logprobs_of(model, [(asked, [*ids, end]) for end in ends], temperature)
            ends = [ends[int(np.argmax([logprobs[-1] for logprobs in likely]))]]
            notes.append(
                "several tokens end a completion, and which one ended this is not on record: the"
                " likeliest is shown"
            )
        ids = [*ids, *ends]
    # special tokens are lost where TRL decodes, and some texts have several tokenisations
    if len(ids) != batch.lengths[at]:
        notes.append(
            f"the recorded text has {len(ids)} tokens, the completion had {batch.lengths[at]}:"
            " tokenised differently"
        )
    logprobs = {}
    for base in (True, False):
        with policy.generating(base=base) as model:
            logprobs[base] = np.array(logprobs_of(model, [(asked, ids)], temperature)[0])
    return TokenView(
        f"step {batch.step}, group {batch.group_places[place]}, completion {generation}",
        texts_of(tokenizer, ids),
        logprobs[True],
        logprobs[False],
        float(batch.advantages[at]),
        "\n".join(notes),
    )
