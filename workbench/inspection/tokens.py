"""One completion token by token: how likely the base and the trained policy find each, and where
the two diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.data.rendering import prompt_text
from workbench.errors import RunError
from workbench.printable import printable
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place
from workbench.training.loading import eos_ids
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import logprobs_of


@dataclass(frozen=True, repr=False)
class TokenView:
    """A completion of T tokens; a cell shades each by its KL. Arrays are [T]; log-probabilities are
    natural.
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
        before, now = (float(np.exp(of[most])) for of in (self.base, self.trained))
        where = (
            f"largest at {self.tokens[most]!r} (probability {before:.2g} under the base, {now:.2g}"
            " trained)"
        )
        said = (
            f"{self.title}, advantage {self.advantage:+.2f}: KL per token {self.kl.mean():.3g},"
            f" {where}"
        )
        return f"{said}\n{self.note}" if self.note else said

    def __str__(self) -> str:
        lines = [
            f"{text!r:>16} {base:8.3f} {trained:8.3f} {kl:8.4f}"
            for text, base, trained, kl in zip(
                self.tokens, self.base, self.trained, self.kl, strict=True
            )
        ]
        return printable(
            "\n".join([self.verdict, f"{'token':>16} {'base':>8} {'trained':>8} {'KL':>8}", *lines])
        )

    __repr__ = __str__


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
    if generation is None:
        own = batch.group(place).advantages
        generation = int(np.argmax(np.abs(np.nan_to_num(own))))
    if not 0 <= generation < batch.num_generations:
        rule = f"a group of this run has {batch.num_generations} completions, counted from 0"
        raise RunError(
            f"generation = {generation}",
            rule=rule,
            remedy=f"choose 0 to {batch.num_generations - 1}",
        )
    at = place * batch.num_generations + generation
    notes, wrote = [], run.checkpoints / f"checkpoint-{batch.step - 1}"
    if policy is None:
        if not wrote.is_dir():
            logged = next(
                (row.get("kl") for row in run.metrics() if row.get("step") == batch.step), None
            )
            logged = (
                ""
                if logged is None
                else f"; at that step a KL of {logged:.3g} per token was logged"
            )
            notes.append(
                "under the newest adapter, not the one that wrote it: no checkpoint of step"
                f" {batch.step - 1}{logged}"
            )
        policy = load_policy(run.recipe(), adapter=wrote if wrote.is_dir() else run.adapter)
    tokenizer, prompt, text = policy.tokenizer, batch.prompts[at], batch.completions[at]
    asked = tokenizer(prompt_text(prompt, tokenizer), add_special_tokens=isinstance(prompt, str))[
        "input_ids"
    ]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    temperature, found = run.manifest()["settings"]["in_force"].get("temperature") or 1.0, {}
    ends, ended = eos_ids(policy), batch.finished is None or batch.finished[at]
    if ended and not {*ids[-1:]} & {*ends}:
        if len(ends) > 1:
            with policy.generating() as model:
                likely = logprobs_of(model, [(asked, [*ids, each]) for each in ends], temperature)
            ends = [ends[int(np.argmax([each[-1] for each in likely]))]]
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
    for base in (True, False):
        with policy.generating(base=base) as model:
            found[base] = np.array(logprobs_of(model, [(asked, ids)], temperature)[0])
    tokens = [tokenizer.decode([each]) for each in ids]
    title = f"step {batch.step}, group {batch.group_places[place]}, completion {generation}"
    return TokenView(
        title, tokens, found[True], found[False], float(batch.advantages[at]), "\n".join(notes)
    )
