"""What a plan checks and measures of a policy that is not loaded: its tokenizer, the lengths of
prompts, its shape, and which extras it needs.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.base.cache import file_states, kept
from workbench.base.errors import DataError, PolicyError, RecipeError
from workbench.base.extras import installed, need, need_train
from workbench.base.kinds import Fields, Model
from workbench.data.rendering import (
    Measure,
    check_embedded,
    prompt_lengths_tokens,
    template_notes,
)
from workbench.recipe import Recipe
from workbench.training.plan.loading import content_of, find_model, load_tokenizer
from workbench.training.plan.settings.values import SAMPLING

_SPACED = "What is 2 + 3 ?\n\tSay it in one word."


def measure_of(name: str, chat_template_kwargs: Fields) -> Measure:
    """Measures prompts with a policy's tokenizer, which is loaded and checked where that has to be
    done; raises as `load_tokenizer` and `check_tokenizer`.
    """

    @functools.cache
    def loaded() -> Measure:
        tokenizer = load_tokenizer(name, chat_template_kwargs)
        check_tokenizer(tokenizer, name)
        return measuring(tokenizer)

    def checked(files: object, *of: Any) -> tuple[list[str], list[int]]:
        return loaded()(*of)

    files = tokenizer_files(name)
    return functools.partial(kept(checked) if files else checked, files)


def measuring(tokenizer: Any) -> Measure:
    """Measures prompts, and says what in the first one's rendering would make a reward impossible
    to earn; the tokenizer carries the arguments of its template from then on. PolicyError: a prompt
    has a token that the policy's embedding lacks.
    """

    from workbench.data.template import template_card

    def measured(kwargs: Fields, rows: list[Any], tools: Any) -> tuple[list[str], list[int]]:
        tokenizer.chat_template_kwargs = kwargs
        lengths = [*prompt_lengths_tokens(rows, tokenizer, tools=tools)]
        if not rows:
            return [], lengths
        check_embedded(tokenizer, rows, tools)
        notes = template_notes(rows, tokenizer)
        with contextlib.suppress(DataError):  # it takes no assistant's turn after this prompt
            problems = template_card(tokenizer, rows[0]["prompt"]).problems
            notes += [f"WARNING: {problem}" for problem in problems]
        return notes, lengths

    return measured


def tokenizer_files(name: str | Path) -> Fields:
    """What a tokenizer's results follow from, where it is in a folder: its files; and today's date,
    if its template may write it. Empty for one on the hub.
    """
    folder = Path(find_model(name, ask_hub=False))
    texts = [*folder.glob("*.jinja"), *folder.glob("*_config.json")]
    dated = any("strftime_now" in file.read_text("utf-8", "ignore") for file in texts)
    states: Fields = file_states(file for file in folder.glob("*") if file.is_file())
    return states | ({"today": str(datetime.date.today())} if dated else {})


def check_tokenizer(tokenizer: Any, name: str | Path) -> None:
    """PolicyError for a tokenizer that runs words together, whose policy would neither read nor
    write white space, or that pads or ends with a token that the embedding lacks.
    """
    special = f"{tokenizer.pad_token} {tokenizer.bos_token} {tokenizer.eos_token}"
    check_embedded(tokenizer, [{"prompt": special}], what=f"policy {str(name)!r}")
    # It warns of the first prompt that is too long, and of no other: the workbench measures all.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    ids = tokenizer(_SPACED, add_special_tokens=False)["input_ids"]
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if "".join(back.split()) == "".join(_SPACED.split()) and back.split() != _SPACED.split():
        made = f"its tokenizer ({type(tokenizer).__name__}) makes {back!r} of {_SPACED!r}"
        raise PolicyError(
            f"policy {str(name)!r}: {made}",
            rule="a text that is encoded and decoded keeps its white space; here the class does"
            " not fit tokenizer.json",
            remedy='set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json, in'
            " a copy of the folder",
        )


def sampled_besides(name: str, settings: Fields) -> list[str]:
    """A line on what a policy's own generation_config adds to a recipe's settings while completions
    are sampled; none where vLLM does.
    """
    given = {"min_p": settings.get("min_p"), **(settings.get("generation_kwargs") or {})}
    with contextlib.suppress(PolicyError):
        source = find_model(name, ask_hub=False)
        own = content_of(source, "generation_config.json", local_files_only=True) or {}
        acting = [key for key in SAMPLING["by_policy"] if own.get(key) and given.get(key) is None]
        if acting and not settings.get("use_vllm"):
            values = ", ".join(f"{key} = {own[key]!r}" for key in acting)
            does = "acts while completions are sampled, unless generation_kwargs says otherwise"
            return [f"the policy's generation_config: {values}: {does}"]
    return []


def shape_of_policy(recipe: Recipe, policy: Any = None) -> tuple[Any, list[str]]:
    """(shape of a recipe's policy, None: not known; notes on its 4 bits and its adapter, which a
    loaded policy has itself). RecipeError for the loss of a router that it does not have.
    """
    from workbench.memory.shapes import adapter_on, from_config, routes, shape_of, unquantised

    try:
        if policy is None:
            shape = shape_of(recipe.policy.name)
        else:
            shape = from_config(policy.model.config.to_dict(), policy.name)
    except PolicyError:  # loading it says what is wrong
        return None, []
    if (coef := recipe.grpo.get("router_aux_loss_coef")) and not routes(shape):
        raise RecipeError(
            f"grpo.router_aux_loss_coef = {coef!r}, and policy {shape.name!r}",
            rule="it weighs the load of experts, and this model gives no router's logits",
            remedy="leave it out",
        )
    if policy is not None:
        return shape, []
    notes = _no_layer(adapter_on(shape, recipe.lora).unmatched)
    if recipe.policy.load_in_4bit and shape.stacked:
        stays = unquantised(shape.stacked, shape.parameters)
        notes.insert(0, f"load_in_4bit = True: {stays}")
    return shape, notes


def adapter_notes(model: Model, target_modules: Sequence[str]) -> list[str]:
    """Requested layers that a model's new adapter is not on."""
    from workbench.memory.shapes import unmatched

    return _no_layer(unmatched(model, target_modules))


def _no_layer(names: Sequence[str]) -> list[str]:
    called = f"no layer of this model is called {' or '.join(names)}; no adapter there"
    return [f"lora.target_modules: {called}"] if names else []


def without_extras(recipe: Recipe) -> list[str]:
    """Lines on defaults that are others here, as an extra is not installed. MissingError: the
    recipe names what is not there.
    """
    need_train()
    said, lines = recipe.policy.model_fields_set, []
    if recipe.policy.load_in_4bit:
        need("bitsandbytes")
    elif "load_in_4bit" not in said:
        lines.append("policy.load_in_4bit = False: bitsandbytes is not installed here")
    if "backend" not in said and not installed("unsloth"):
        why = "Unsloth is not installed here, and plain transformers trains"
        lines.insert(0, f"policy.backend = 'transformers': {why}")
    return lines
