"""TRL's GRPOConfig and GRPOTrainer, built of checked settings: what they refuse together is a
RecipeError, and what they warn of is heard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields, Trainer, TrainingArguments
from workbench.task import Row
from workbench.training.plan import Stage
from workbench.training.plan.loading import find_adapter
from workbench.training.plan.precision import adapter_in_float32, config_overrides
from workbench.training.plan.settings.in_force import plain_setting
from workbench.training.policy import Policy
from workbench.training.replaced import replace, replaces

_IN_OUR_WORDS = re.compile("luspo|VESPO|importance_sampling_level='sequence'|EXPERIMENTAL")


class Built(NamedTuple):
    """A GRPOConfig, and what it was built from."""

    given: Fields
    config: Any
    heard: list[str]  # warnings


def build(
    config_class: type,
    settings: Fields,
    folder: str | Path,
    *,
    backend: str,
    computes: str | None,
    cuda: bool,
    **more: object,
) -> Built:
    """A GRPOConfig of what `normalised` gives and the device needs, in which `scale_rewards` is as
    requested.

    Unsloth's class turns "group" into "none" where loss_type is "dr_grpo", even if it was
    requested, and the advantages recorded would not be those trained on.
    """
    given = settings | config_overrides(backend, computes, settings, cuda=cuda)
    own: Fields = {"output_dir": str(folder), "disable_tqdm": True}  # watchers show progress
    with taken_together() as heard:
        config = config_class(**{**given, "scale_rewards": "none"}, **own, **more)
    config.scale_rewards = plain_setting("scale_rewards", given["scale_rewards"])
    return Built(given, config, heard)


@contextlib.contextmanager
def taken_together() -> Generator[list[str], None, None]:
    """RecipeError for settings that the libraries refuse together; their warnings are appended to
    the list, each once.
    """
    heard: list[str] = []

    def hear(who: str, said: object) -> None:
        line = f"{who} warns: {' '.join(str(said).split())}"
        # A plan says some in its own words: `combinations.py`. The pins hold what is experimental.
        if line not in heard and not _IN_OUR_WORDS.search(line):
            heard.append(line)

    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: hear("TRL", record.getMessage())
    logging.getLogger("trl").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("default")
            yield heard
    except (TypeError, ValueError, AttributeError, ImportError, NotImplementedError) as error:
        raise RecipeError(
            f"grpo: {error}",
            rule="GRPOConfig and GRPOTrainer accept these settings together",
            remedy="change the setting that it names",
        ) from error
    finally:
        logging.getLogger("trl").removeHandler(handler)
    for each in warned:
        if issubclass(each.category, (UserWarning, FutureWarning)):
            _, _, inside = each.filename.replace(os.sep, "/").rpartition("/site-packages/")
            library = inside.partition("/")[0] or "Python"
            hear("TRL" if library == "trl" else library, each.message)


def build_config(
    config_class: type, stage: Stage, folder: str | Path, policy: Policy
) -> TrainingArguments:
    """The stage's GRPOConfig for the policy's backend, or a RecipeError. `features/trackers.py`
    guards trackers, not this.
    """
    import torch

    suite, settings = stage.scored_by[1], {**stage.settings, "report_to": "none"}
    _, config, _ = build(
        config_class,
        settings,
        folder,
        backend=policy.backend_name,
        computes=policy.compute_dtype,
        cuda=torch.cuda.is_available(),
        seed=stage.recipe.seed,
        reward_weights=list(suite.weights),
    )
    if config.n_gpu > 1:
        # or transformers would train on all at once, with a batch and a loss so many times as large
        config._n_gpu = 1
    # What is recorded follows from what is in force, whoever chose it.
    suite.scale_rewards = config.scale_rewards
    suite.aggregation = config.multi_objective_aggregation
    return config


@replaces("create_model_card")
def build_trainer(
    trainer_class: type, config: object, stage: Stage, policy: Policy
) -> tuple[Trainer, list[str]]:
    """(TRL's trainer for a stage, on the policy's own adapter; its warnings). RecipeError for what
    it refuses together.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    model, tokenizer, suite = policy.model, policy.tokenizer, stage.scored_by[1]
    rows, suite.aside = _for_arrow(stage.rows)
    hold_reference(model, None)  # that of the stage before
    kept = [(one, one.data) for one in model.parameters() if one.requires_grad]
    tokenizer.chat_template_kwargs = stage.recipe.chat_template_kwargs
    with taken_together() as heard:
        trainer = trainer_class(
            model=model,
            processing_class=tokenizer,
            reward_funcs=suite.funcs,
            args=config,
            train_dataset=Dataset.from_list(rows),
            **stage.scored_by[0].for_turns,
        )
    # An environment's own reward is one of the suite's, which records it.
    for name in ("funcs", "func_names", "processing_classes", "weights"):
        own = getattr(trainer, f"reward_{name}")
        setattr(trainer, f"reward_{name}", own[: len(suite.names)])
    trainer.remove_callback(PrinterCallback)
    # A form that nobody has filled in, and that asks trackers for their addresses at every
    # checkpoint.
    replace(trainer, "create_model_card", lambda *_, **__: None)
    # TRL's reference is a frozen copy of the adapter as the stage finds it; Unsloth's is the base
    # model. One meaning for both, for every stage and for a run that goes on.
    own = stage.recipe.policy
    hold_reference(model, own.adapter if own.reference == "adapter" else None)
    # TRL rounds the adapter of a 4-bit model to bfloat16, where a small learning rate's updates
    # vanish, and one that was trained before is no longer what it was.
    for parameter, data in kept if policy.trained_in else ():
        parameter.data = data
    adapter_in_float32(model)
    return trainer, heard


def _for_arrow(rows: list[Row]) -> tuple[list[Row], dict[str, list[Any]]]:
    """(rows that come back from an Arrow table as they are; column -> its values, of which those
    rows hold the row's number).

    Arrow gives every dict of a column the keys of all, and turns or refuses values of several
    types, large integers and texts that are not UTF-8.
    """
    from pyarrow import array

    aside = {}
    for name in dict.fromkeys(name for row in rows for name in row if name != "prompt"):
        values = [row.get(name) for row in rows]
        try:
            plain = set(map(type, values)) <= {str, int, float, bool, type(None)}
            # By their texts: 1 equals 1.0 and True.
            same = plain and str(array(values).to_pylist()) == str(values)
        except (ValueError, TypeError, OverflowError):
            same = False
        if not same:
            aside[name] = values
    return [{**row, **dict.fromkeys(aside, number)} for number, row in enumerate(rows)], aside


def hold_reference(model: Any, adapter: str | None) -> None:
    """Make KL measured from a trained adapter, a frozen copy of which goes onto the model under
    TRL's own name; None: from the model without an adapter, as where there is no such copy.
    """
    if "ref" in model.peft_config:  # TRL's: what this stage found, which is neither
        model.delete_adapter("ref")
    if adapter is not None:
        model.load_adapter(find_adapter(adapter), "ref", torch_device="cpu")
