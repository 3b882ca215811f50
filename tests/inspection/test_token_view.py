"""Token by token: k3 by hand, a page that holds no markup of a completion's, and the KL that training logged."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from made_tokenizers import made_tokenizer

from workbench import inspection
from workbench.base.errors import RunError
from workbench.inspection.tokens import TokenView, texts_of
from workbench.recipe import Recipe
from workbench.run.batch import ScoredBatch
from workbench.run.rollouts import read_batches
from workbench.training.policy import load_policy
from workbench.training.trainer import train
from workbench.views.display import view_of
from workbench.views.look import ORANGE


def test_the_kl_of_each_token_by_hand_and_its_shade():
    base, trained = np.log([0.5, 0.25]), np.log([0.5, 0.5])
    view = TokenView("step 1", ["<b>", "$x$\n"], base, trained, -0.5)
    # r = 0.25 / 0.5: r - ln r - 1 = 0.5 + 0.6931 - 1.
    assert view.kl == pytest.approx([0.0, 0.193147], abs=1e-6)
    assert view.verdict.startswith(
        "step 1, advantage -0.50: KL per token 0.0966, largest at '$x$\\n' (probability 0.25 under the base"
    )
    page = view_of(view)._repr_html_()
    assert "<b>" not in page
    assert "tex2jax_ignore" in page
    assert page.count(f"color-mix(in srgb,{ORANGE} 90.0%,transparent)") == 1  # likelier, and all of the KL


def test_tokens_read_as_the_text_does_and_the_bytes_of_a_character_are_one():
    tokenizer, text = made_tokenizer(""), "is 7 €\nété 🙂"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = texts_of(tokenizer, ids)
    assert "".join(found) == text
    at = found.index("€")
    assert found[at + 1 : at + 4] == ["", "", "\n"]
    assert found[-4:] == ["🙂", "", "", ""]
    cut = texts_of(tokenizer, ids[: at + 2])  # within a character: nothing breaks, nothing before it changes
    assert (cut[:at], len(cut)) == (found[:at], at + 2)
    flat = np.zeros(len(ids))
    apart = np.arange(len(ids)) == len(ids) - 1  # the last byte of the character has all of the KL
    view = TokenView("step 1", found, flat, flat + apart, 1.0)
    assert "largest at '🙂'" in view.verdict
    assert "⏎\n<" in view_of(view)._repr_html_()


@pytest.mark.slow
def test_the_shading_adds_up_to_the_kl_that_was_logged(home):
    grpo = {"max_steps": 2, "save_steps": 1, "beta": 0.05, "learning_rate": 5e-3, "num_generations": 4, "temperature": 0.8}
    grpo |= {"per_device_train_batch_size": 8, "max_completion_length": 48, "logging_steps": 1, "warmup_steps": 0}
    run = train(Recipe(run_name="k", task="arithmetic", policy={"name": "tiny"}, grpo=grpo))
    policy = load_policy(run.recipe(), adapter=run.checkpoints / "checkpoint-1")
    views = []
    for batch in read_batches(run, [2]):
        assert isinstance(batch, ScoredBatch)
        for index in range(batch.group_count):
            views += [inspection.token_view(run, 2, index, generation, policy=policy) for generation in range(4)]
    assert [view.note for view in views] == [""] * 8
    logged = next(row["kl"] for row in run.metrics() if row["step"] == 2)
    assert logged > 1e-4
    # Parts of the model compute in bfloat16, where sums of another padding round in another way: 0.13 % was seen.
    assert np.concatenate([view.kl for view in views]).mean() == pytest.approx(logged, rel=0.02)
    own = inspection.token_view(run)  # with the checkpoint that wrote it
    assert own.kl == pytest.approx(next(view.kl for view in views if view.title == own.title))
    assert own.note == ""
    shutil.rmtree(run.checkpoints / "checkpoint-1")
    newest = "under the newest adapter, not the one that wrote it: no checkpoint of step 1"
    assert inspection.token_view(run).note.startswith(newest)
    assert own.title in [view.title for view in views]
    assert abs(own.advantage) == max(abs(view.advantage) for view in views if view.title[:16] == own.title[:16])
    with pytest.raises(RunError, match="generation = 4"):
        inspection.token_view(run, generation=4)
