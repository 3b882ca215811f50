"""Readers of artefacts through plain transformers, and what a proof of nothing is."""

from __future__ import annotations

import pytest

from workbench.base.errors import ExportError
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check, Proof, Proofs
from workbench.exporting.reading import HFReader, open_reader
from workbench.tiny import MODEL_DIR
from workbench.training.sampling import logprobs_of
from workbench.views.results import proof_table


def test_a_reader_writes_together_what_it_writes_alone():
    reader = open_reader(Artefact(MODEL_DIR, "merged_16bit", "tiny"))
    assert isinstance(reader, HFReader)
    asked = [[{"role": "user", "content": text}] for text in ("What is 15 + 27?", "Hi", "What is 1 + 1? " * 6)]
    prompts = [reader.prompt_ids(prompt) for prompt in asked]
    together = reader.generate(prompts, 16)
    assert together == [reader.write(prompt, 16) for prompt in prompts]
    assert reader.ends == reader.of_base == [2]
    alone = [reader.logprobs(prompt, ids) for prompt, ids in zip(prompts, together, strict=True)]
    for one, other in zip(alone, logprobs_of(reader.model, list(zip(prompts, together, strict=True))), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    # The likeliest token is the likeliest: of what was written greedily, no other has more than half where this one has.
    assert all(len(one) == len(ids) and max(one) <= 0 for one, ids in zip(alone, together, strict=True))
    reader.tokenizer.chat_template = None
    assert reader.render(asked[0]) is None
    assert reader.render("text") == "text"


def test_a_proof_of_nothing_is_none():
    assert not Proof("a", "adapter", ()).passed
    assert not Proofs().passed
    with pytest.raises(ExportError, match="no check was made"):
        Proof("a", "adapter", ()).require()
    assert Proof("a", "adapter", (Check("files", "sums", True, "all"), Check("weights", "x", None, "y"))).passed


def test_what_is_measured_is_told_from_what_cannot_be_told():
    checks = [Check("behaviour", "a check", passed, "y", "worse" * (passed is False)) for passed in (True, False)]
    checks += [Check("behaviour", "a check", None, "y", measured=own) for own in (True, False)]
    assert [check.mark for check in checks] == ["passed", "FAILED", "measured", "cannot be told"]
    page = proof_table(Proofs([Proof("runs/r/export/adapter", "adapter", tuple(checks)), Proof("elsewhere", "gguf_f16", ())]))
    for text in (str(page), page._repr_html_()):
        assert [text.count(check.mark) for check in checks] == [1, 5, 1, 1]  # each verdict twice
        assert text.count("runs/r/export/adapter") == text.count("elsewhere") == 1
