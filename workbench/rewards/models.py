"""Reward models among the reward functions: a sequence classifier with one output, as TRL takes it.

TRL calls a model among its `reward_funcs` itself, so nothing would check, record or rescore its
output. Here it becomes a function in TRL's signature that computes what TRL computes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

from workbench.base.errors import TaskError
from workbench.base.extras import need_train
from workbench.base.kinds import Function


def as_function(thing: object, tokenizer: object = None, name: str | None = None) -> Function:
    """A reward function for anything that TRL takes as one: a function as it is, a classification
    model, its id or its folder.

    A model scores prompt and completion together, in its own chat template where they are chat, in
    this process (`runs_in_process`), and states no maximum. One given by its id or folder is loaded
    when the function is first called. TaskError for anything else, and for a model that has more
    than one output or no name.

    Args:
        tokenizer: the model's; None: the one that lies beside its weights.
        name: of the function; None: as TRL calls it, by the last part of the model's id or folder.
    """
    # A module can only be there where torch has been imported; importing it to ask would cost
    # seconds.
    torch = sys.modules.get("torch")
    if not isinstance(thing, str) and not (
        torch is not None and isinstance(thing, torch.nn.Module)
    ):
        if callable(thing):
            return thing
        raise TaskError(
            f"among the reward functions: {type(thing).__name__} {repr(thing)[:80]}",
            rule="a reward function is a callable, a reward model, or the id or folder of one",
            remedy="give the function itself, without calling it",
        )
    model = RewardModel(thing, tokenizer)

    def reward_model(
        prompts: Sequence[object], completions: Sequence[object], **kwargs: object
    ) -> list[float]:
        return model.scores(prompts, completions)

    reward_model.__name__ = reward_model.__qualname__ = name or model.name
    reward_model.__doc__ = (
        f"What the reward model {model.path} says of prompt and completion: any number, no maximum."
    )
    vars(reward_model)["runs_in_process"] = True
    return reward_model


class RewardModel:
    """A sequence classifier with one output, given itself or by its id or folder, and the tokenizer
    that it reads with.
    """

    def __init__(self, model: Any, tokenizer: object = None) -> None:
        self._model: Any = None if isinstance(model, str) else model
        self._tokenizer: Any = tokenizer  # both are loaded where they are first needed
        self._ready = False
        self.path = (
            model if isinstance(model, str) else str(getattr(model.config, "_name_or_path", ""))
        )
        if not self.path and tokenizer is None:
            raise TaskError(
                f"a {type(model).__name__} that was not loaded from anywhere",
                rule="a reward model reads with its own tokenizer, which lies beside its weights",
                remedy="as_function(model, tokenizer=...), or load the model with from_pretrained",
            )
        self.name = self.path.rstrip("/").split("/")[-1] or type(model).__name__
        if self._model is not None:
            self._check_outputs()

    def __repr__(self) -> str:
        # Stands for the model in a reward's hash, so it must not differ between two processes.
        return f"RewardModel({self.path or self.name!r})"

    def scores(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
        """One number per completion, from one forward pass over all of them."""
        if not len(completions):
            return []
        if not self._ready:
            self._prepare()
        import torch

        template = self._tokenizer.apply_chat_template
        texts = [
            (
                prompt + completion
                if isinstance(prompt, str)
                else template([*prompt, *completion], tokenize=False)
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        inputs = self._tokenizer(
            text=texts,
            return_tensors="pt",
            padding=True,
            padding_side="right",
            add_special_tokens=False,
        )
        with torch.inference_mode():
            logits = self._model(**inputs.to(self._model.device)).logits
        return logits[:, 0].float().tolist()

    def _prepare(self) -> None:
        need_train()
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if self._model is None:
            self._model, report = AutoModelForSequenceClassification.from_pretrained(
                self.path,
                num_labels=1,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
            )
            if unfit := sorted(
                [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])]
            ):
                self._model = None
                raise TaskError(
                    f"reward model {self.path!r}: {unfit[0]} is not among its weights, or not for"
                    " one output",
                    rule="a reward model has one trained output; transformers draws weights that it"
                    " lacks at random",
                    remedy="give a model trained for sequence classification with one label",
                )
            self._check_outputs()
        if self._tokenizer is None:
            self._tokenizer = cast(
                Any, AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)
            )
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # The score is read at the last token that is not padding, so the model has to know which
        # token pads.
        self._model.config.get_text_config().pad_token_id = self._tokenizer.pad_token_id
        # A quantized or divided model has its place already, and refuses to be moved.
        placed = getattr(self._model, "hf_device_map", None) or getattr(
            self._model, "is_quantized", False
        )
        if torch.cuda.is_available() and not placed:
            self._model.to("cuda")
        self._model.eval()
        self._ready = True

    def _check_outputs(self) -> None:
        if (outputs := getattr(self._model.config, "num_labels", 1)) != 1:
            raise TaskError(
                f"reward model {self.path or self.name!r}: {outputs} outputs",
                rule="a reward model has one output; of several, TRL would take the first for the"
                " score",
                remedy="load it with num_labels=1, or write a function that says which output is"
                " the score",
            )
