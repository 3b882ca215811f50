"""The completions that `generate` would give, faster: each prompt is read once for all its
completions.

`decoding.py` is the loop and what it leaves to transformers' own path, `adapters.py` makes it
quick; this module puts it where a trainer generates. It enters through
`generate(custom_generate=...)`, transformers' own hook for another loop, so settings, processors of
logits and stopping criteria are the ones that `generate` prepares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.base.kinds import Fields
from workbench.recipe import Recipe
from workbench.training.feature import Feature, Watched
from workbench.training.plan import Stage
from workbench.training.plan.settings.device import Machine
from workbench.training.resuming import not_numbers

if TYPE_CHECKING:
    from workbench.memory.shapes import ModelShape

_LOGGER = logging.getLogger("transformers.generation.utils")
SWITCHED_OFF = "generation: trl in the recipe"
UNSLOTH_ON_A_GPU = "on a GPU it is Unsloth's decoding, with its own kernels"
VLLM = "vLLM generates"
CONTINUOUS = "transformers' continuous batching generates"
# Of `generation_kwargs`; decoding.py knows what they turn into.
_COVERED = {
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens",
    "eos_token_id",
    "pad_token_id", "bos_token_id",
}  # fmt: skip


def expected(
    recipe: Recipe, settings: Fields, cuda: bool, shape: ModelShape | None = None
) -> str | None:
    """Why TRL's own path will generate, as far as is known before a model is loaded; None: it will
    not.

    `shape`: of the policy; None: not known.
    """
    dropout, cache = recipe.lora.lora_dropout, settings.get("cache_implementation")
    caches = [name for name in shape.caches if name != "DynamicLayer"] if shape else []
    others = [name for name in settings.get("generation_kwargs") or {} if name not in _COVERED]
    reasons = {
        VLLM: settings.get("use_vllm"),
        CONTINUOUS: settings.get("use_transformers_continuous_batching"),
        SWITCHED_OFF: recipe.generation == "trl",
        UNSLOTH_ON_A_GPU: recipe.policy.backend == "unsloth" and cuda,
        f"lora_dropout = {dropout:g}: each completion is sampled under its own mask": dropout,
        f"cache_implementation = {cache!r} is not covered by the workbench's loop": cache,
        f"a cache of {''.join(caches[:1])}": caches,
        "a mixture of experts on a GPU, for whose decoding transformers switches kernels": (
            shape and shape.stacked and cuda
        ),
        f"generation_kwargs.{''.join(others[:1])} is not covered by the workbench's loop": others,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def generation_line(why_not: str | None, num_generations: int) -> str:
    """One line for before a run."""
    once = f"each prompt is read once for its {num_generations} completions"
    if why_not is None:
        return f"The workbench's own loop generates: {once} (`generation: trl` turns it off)"
    if why_not in (VLLM, CONTINUOUS):
        return why_not
    compiles = "; the first step compiles them, for about a minute" * (why_not == UNSLOTH_ON_A_GPU)
    return f"TRL's own path generates: {why_not}{compiles}"


class DecodingLoop(Feature):
    """The loop, for as long as a stage of a recipe's run trains."""

    key = "generation"
    of_recipe = True

    def __init__(self, session: Watched) -> None:
        super().__init__(session)
        self.loop = Generation(session.policy.model)

    @classmethod
    def generates(cls, stage: Stage, machine: Machine, shape: ModelShape | None) -> str | None:
        if stage.task and stage.task.rollout_func:
            return None  # which generates as it likes
        why_not = expected(stage.recipe, stage.settings, machine.cuda, shape)
        return generation_line(why_not, stage.planned.num_generations)

    def begin_stage(self, stage: Stage) -> None:
        model = self.session.policy.model
        why_not = expected(stage.recipe, stage.settings, model.device.type == "cuda")
        self.loop = Generation(model, why_not, self._changed, before=self.loop)

    def _changed(self, why_not: str | None) -> None:
        session = self.session
        step = session.trainer.state.global_step + 1
        by = {"by": "trl", "why": why_not} if why_not else {"by": "workbench"}
        session.recorder.event("generation", step, **by)
        if why_not:
            print(f"from step {step} on TRL's own path generates: {why_not}", flush=True)

    def training(self) -> Generation:
        return self.loop

    def started(self) -> Fields:
        return {"generation": self.loop.why_not or "the workbench's loop"}

    def explained(self, error: Exception) -> Exception:
        # imports transformers
        from workbench.instruments.cpu.generation.decoding import NotNumbers

        if isinstance(error, NotNumbers):
            step = self.session.trainer.state.global_step
            return not_numbers(self.session.run, f"in step {step + 1} {error}", step)
        return error

    def result(self, seconds: float) -> Fields:
        return {"generation": self.loop.found()}


class Generation:
    """Inside, `model.generate` runs the workbench's loop, and transformers' own where the loop does
    not cover the call.

    Args:
        why_not: a reason to leave everything to transformers; afterwards, why the latest call was;
            None: the loop did it.
        changed: called with the reason when transformers' path takes over, or with None when the
            loop is back.
        before: the run's previous stage, whose `calls` of the loop ("workbench") and of
            transformers' path ("trl") are added to.
    """

    def __init__(
        self,
        model: Any,
        why_not: str | None = None,
        changed: Callable[[str | None], None] = lambda reason: None,
        before: Generation | None = None,
    ) -> None:
        self.model, self.why_not, self._changed = model, why_not, changed
        self._always = why_not is not None
        self.calls = before.calls if before else {"workbench": 0, "trl": 0}

    def found(self) -> Fields:
        """For the record: who generated ("both"; None: nothing went through `generate`), how often,
        and why not the loop.
        """
        used = [name for name, count in self.calls.items() if count]
        report: Fields = {"by": None, "calls": dict(self.calls)}
        if used:
            report["by"] = used[0] if len(used) == 1 else "both"
        if self.why_not:
            report["why"] = self.why_not
        return report

    def __enter__(self) -> Generation:
        # Unsloth puts the context's length there, and transformers then warns at every call that
        # max_new_tokens is in force.
        config = self.model.generation_config
        self._max_length, config.max_length = config.max_length, None
        self._replaced, self._had = self.model.generate, "generate" in vars(self.model)
        # Samples that are asked for while it trains go around the training's loop: they are none of
        # its calls.
        outer = getattr(self._replaced, "__self__", None)
        self._generate = outer._generate if isinstance(outer, Generation) else self._replaced
        self.model.generate = self.generate
        _LOGGER.addFilter(self._is_news)
        return self

    def __exit__(self, *_: object) -> None:
        _LOGGER.removeFilter(self._is_news)
        self.model.generation_config.max_length = self._max_length
        if self._had:
            self.model.generate = self._replaced
        else:
            vars(self.model).pop("generate", None)

    def _is_news(self, record: logging.LogRecord) -> bool:
        # Unsloth's generate adds some to the generation_config that TRL hands over, and
        # transformers calls that deprecated.
        return not record.getMessage().startswith("Passing `generation_config` together with")

    def generate(self, *args: object, **kwargs: object) -> Any:
        """The same as `model.generate`."""
        output = None if self._always else self._loop(args, kwargs)
        if output is None:
            self.calls["trl"] += 1
            output = self._generate(*args, **kwargs)
        return output

    def _loop(self, args: tuple, kwargs: Fields) -> object:
        import torch
        from transformers import GenerationConfig

        from workbench.instruments.cpu.generation.decoding import NotNumbers, Unsupported, decoder
        from workbench.training.randomness import put_back, random_states

        states, reason, output = random_states(), None, None
        known = {"input_ids", "attention_mask", "generation_config", *GenerationConfig().to_dict()}
        other = sorted(kwargs.keys() - known)
        try:
            if args or other:
                raise Unsupported(f"inputs other than text: {', '.join(other) or 'by position'}")
            output = self._generate(**kwargs, custom_generate=decoder())
            self.calls["workbench"] += 1
        except Unsupported as error:
            reason = str(error)
        except (NotNumbers, torch.OutOfMemoryError):
            raise  # no other path would do better
        except Exception as error:
            # The loop is an improvement and no reason to lose a run: from here on it is left out,
            # and said.
            self._always = True
            why = f"{type(error).__name__}: {error}"
            reason = f"the workbench's loop failed and is left out from here on: {why}"
        if output is None:
            put_back(states)
        if reason != self.why_not:
            self.why_not = reason
            self._changed(reason)
        return output


def outside_a_run(model: Any, by_unsloth: bool) -> Generation:
    """The loop for a model that generates outside a trainer. `by_unsloth`: with Unsloth's kernels
    on a GPU, which it is left to.
    """
    return Generation(
        model,
        UNSLOTH_ON_A_GPU if by_unsloth else None,
        lambda reason: print(f"transformers' own path generates: {reason}", flush=True),
    )
