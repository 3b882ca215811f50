"""The model card: its metadata, its text, and that nothing in it is markup of somebody else's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from huggingface_hub import ModelCard
from made_artefacts import EVALUATION, made_artefact, made_run
from made_runs import made_run as exported_run
from markdown_it import MarkdownIt
from running import HOSTILE

from workbench.exporting.card import code, fenced
from workbench.exporting.card import text as as_text
from workbench.exporting.checks import Check, Proof
from workbench.exporting.making import export
from workbench.exporting.passport import add_proof
from workbench.exporting.risk import MergeRisk

pytestmark = pytest.mark.usefixtures("home")
EVIL = "x | <script>alert(1)</script> [a](http://b) ![c](d) `e` **f** __g__ $h$ \u202e\x1b[31m &lt; \n# i\n| j | k |\n---\n"


def card_of(artefact) -> ModelCard:
    return ModelCard.load(artefact.path / "README.md")


def html(text: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(text)


def test_the_metadata_is_what_the_hub_asks_for_and_what_was_measured():
    run = made_run()
    run.write_json("evaluation.json", EVALUATION)
    data = card_of(made_artefact(run)).data
    assert (data.base_model, data.base_model_relation, data.library_name) == ("tiny", "finetune", "transformers")
    assert (data.pipeline_tag, data.license, data.model_name) == ("text-generation", "apache-2.0", "r")
    assert data.tags == ["grpo", "trl", "unsloth", "lora", "workbench"]
    results = {result.metric_name.partition(",")[0]: result for result in data.eval_results[::-1]}
    assert [result.metric_value for result in data.eval_results] == [0.9175, 0.30125, 0.61625]
    # What a leaderboard reads as this model's accuracy is one number.
    assert [one.metric_type for one in data.eval_results] == ["accuracy", "accuracy_before", "accuracy_gain"]
    assert results["gain"].metric_args == {"prompts": 200, "samples": 4, "low": 0.578, "high": 0.654}
    assert {(one.task_type, one.dataset_name, one.dataset_split) for one in data.eval_results} == {
        ("text-generation", "doubles", "held_out")
    }


def test_the_card_that_is_read_is_written_again_as_it_is():
    run = made_run()
    run.write_json("evaluation.json", EVALUATION)
    card = card_of(made_artefact(run))
    again = ModelCard(f"---\n{card.data.to_yaml()}\n---\n{card.text}")
    assert again.data.to_dict() == card.data.to_dict()
    assert [vars(one) for one in again.data.eval_results] == [vars(one) for one in card.data.eval_results]


@pytest.mark.parametrize(
    ("format", "relation", "library", "loaded"),
    [
        ("adapter", "adapter", "peft", "`BASE` is where `tiny` lies, the policy that comes with the workbench"),
        ("merged_16bit", "finetune", "transformers", "transformers.pipeline(\"text-generation\", model='.')"),
        ("merged_4bit", "quantized", "transformers", "transformers.pipeline(\"text-generation\", model='.')"),
        ("gguf_f16", "finetune", "gguf", "llama-server --model ./model.gguf"),
        ("gguf_q4_k_m", "quantized", "gguf", "llama-server --model ./model.gguf"),
    ],
)
def test_each_format_says_how_it_is_loaded(format, relation, library, loaded):
    card = card_of(made_artefact(made_run(), format))
    assert (card.data.base_model_relation, card.data.library_name) == (relation, library)
    assert loaded in card.text


def test_an_adapter_names_its_base_where_others_find_it_and_leaves_a_place_for_it_elsewhere():
    of_hub = card_of(made_artefact(made_run("a"), "adapter", "Qwen/Qwen3-4B")).text
    assert "vllm serve Qwen/Qwen3-4B --enable-lora" in of_hub
    assert "AutoPeftModelForCausalLM.from_pretrained('.')" in of_hub
    local = card_of(made_artefact(made_run("b"), "adapter", "/srv/own-7b")).text
    assert "vllm serve BASE --enable-lora" in local
    assert "peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained('BASE'), '.')" in local
    assert "`BASE` is where `own-7b` lies, in a separate folder" in local
    assert "AutoPeft" not in local


def test_an_adapter_says_how_far_the_16_bit_base_lies_from_that_of_training():
    risk = MergeRisk({}, "high: 3.1 times as far", "dequantised")
    text = card_of(export(exported_run(), ["adapter"], into=risk)["adapter"]).text
    assert "trained beside the base in 4 bits (NF4)" in text
    assert "Merge risk: high: 3.1 times as far." in text
    assert "NF4" not in card_of(export(exported_run("b", precision="bf16"), ["adapter"])["adapter"]).text


@pytest.mark.slow
def test_what_it_says_of_loading_works(home):
    artefact = export(exported_run(), ["merged_16bit"], into="base")["merged_16bit"]
    line = re.search(r"transformers:\n\n```\n(.*?)\n```", card_of(artefact).text)[1]
    code = f"import transformers\nprint({line}('What is 15 + 27?', max_new_tokens=8))"
    done = subprocess.run([sys.executable, "-c", code], cwd=artefact.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generated_text" in done.stdout


def test_prompts_that_are_text_are_shown_as_text(monkeypatch):
    from workbench.exporting import serving

    monkeypatch.setattr(serving, "first_prompt", lambda run: "2 + 2 = ")
    assert "\n```\n2 + 2 = \n```" in card_of(made_artefact(made_run())).text


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", "unsloth/Qwen2.5-1.5B-Instruct"),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "unsloth/Qwen3-4B"),
        ("/srv/models/own-7b", "own-7b"),
        ("~/models/own-7b-bnb-4bit", "own-7b"),
        (r"C:\models\own-7b", "own-7b"),
        ("/srv/app/workbench/tiny/model", "tiny"),
        ("/srv/hub/models--Qwen--Qwen3-4B/snapshots/abc", "Qwen/Qwen3-4B"),
    ],
)
def test_the_base_goes_by_the_name_that_others_know(base, name):
    assert card_of(made_artefact(made_run(), base=base)).data.base_model == name


def test_what_was_not_measured_is_said_to_be_so():
    card = card_of(made_artefact(made_run()))
    assert card.data.eval_results is None
    assert "What training gained is not measured." in card.text


def test_the_best_adapter_is_of_its_own_step_and_a_warm_start_is_told():
    run = made_run()
    shutil.copytree(run.final, run.checkpoints / "best-2")
    run.update_manifest(adapter="best-2", warm_start={"samples": 32})
    assert run.adapter.name == "best-2"
    told = "was trained with GRPO for 2 steps on the task `doubles`, after a warm start on 32 right completions (SFT)."
    assert told in card_of(made_artefact(run)).text


def test_a_format_that_was_not_measured_is_not_claimed():
    run = made_run()
    before, after = ({**EVALUATION[when], "format": None} for when in ("before", "after"))
    run.write_json("evaluation.json", {**EVALUATION, "before": before, "after": after})
    card = card_of(made_artefact(run))
    assert "| correct | 30.1 % | 91.8 % |" in card.text
    assert "strict format" not in str(card)


def test_the_text_says_what_decides():
    run = made_run(recipe={"seed": 7, "lora": {"r": 8, "lora_alpha": 32}})
    run.write_json("evaluation.json", EVALUATION)
    text = card_of(made_artefact(run, into="dequantised")).text
    assert "Gain +62 points, 95 % interval +58 to +65." in text
    assert "| correct, strict format | 30.1 % | 91.8 % |" in text
    assert "into the 4-bit weights that it was trained beside" in text
    assert "trained with GRPO for 3 steps on the task `doubles`" in text
    for row in (
        "| num_generations | 4 |", "| beta | 0.01 |", "| learning_rate | 1e-05 |", "| seed | 7 |",
        "| LoRA | r 8, alpha 32, on q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj |",
        "| base while training | nf4, 256 tokens |", "| train rows | 8 | aaaaaaaaaaaaaaaa |", "| cpu | A CPU |",
    ):  # fmt: skip
        assert row in text, row
    functions = run.manifest()["rewards"]["functions"]
    assert f"| correctness_reward | 1.0 | {functions['correctness_reward']} |" in text
    assert "What is" in text.partition("## Prompt format")[2]
    assert "| vllm |" not in text  # not installed


@pytest.mark.parametrize(
    ("name", "file", "card", "called"),
    [
        ("task", "task.py", {"source": "arithmetic"}, "arithmetic"),
        ("sums", "sums.py", None, "sums.py"),
        ("two digits", "task.py", {"source": "arithmetic"}, "two digits"),
        ("gsm8k", "", None, "gsm8k"),
    ],
)
def test_a_task_goes_by_its_own_name_or_by_its_rows_or_by_its_file(name, file, card, called):
    source = f"/srv/tasks/{file}" if file else ""
    run = made_run(task={"name": name, "source": source, "rows": "a", "held_out": "b", "card": card})
    assert f"on the task `{called}`." in card_of(made_artefact(run)).text


def test_a_backslash_begins_no_formula():
    assert as_text(r"of \(x\), $5 and $6") == r"of &#92;(x&#92;), \$5 and \$6"


def test_the_proof_stands_in_it_with_what_is_unproven():
    artefact = made_artefact(made_run())
    checks = (Check("weights", "tensors", True, "21 layers"), Check("tokens", "ids", False, "12 of 1,000", "double_bos", "mend"))
    add_proof(artefact, Proof("x", "merged_16bit", checks, ("Ollama's template",)))
    text = card_of(artefact).text
    assert "compared with the policy that was trained: FAILED." in text
    assert "| weights | tensors | passed | 21 layers |" in text
    assert "| tokens | ids | FAILED | prompts begin with two BOS tokens: 12 of 1,000 |" in text
    assert "- unproven: Ollama's template" in text


def test_what_others_wrote_is_text():
    task = {"name": EVIL, "source": "", "rows": EVIL, "held_out": EVIL, "card": {"source": EVIL}}
    rewards = {"hash": "h", "functions": {EVIL: EVIL}, "weights": {EVIL: 1.0}}
    run = made_run(task=task, rewards=rewards, versions={"trl": EVIL}, template=EVIL)
    artefact = made_artefact(run)
    proof = Proof("x", "merged_16bit", (Check("files", EVIL, True, EVIL),), (EVIL, HOSTILE))
    add_proof(artefact, proof)
    card = card_of(artefact)
    page = html(card.text)
    for tag in ("<script", "<img", "<a ", "<strong", "<h1>i"):
        assert tag not in page.lower(), tag
    assert "\u202e" not in card.text
    assert "\x1b" not in card.text
    assert page.count("<h1>") == 1
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == ["Load it", "Prompt format", "Training", "Proof", "Verify it"]


@pytest.mark.parametrize("given", [EVIL, HOSTILE, "`", "```", "a``b", "~~~", "````\n```\nx"])
def test_text_code_and_fences_hold_whatever_they_are_given(given):
    visible = re.findall(r"\w{4,}", given)
    for made in (as_text(given), code(given), fenced(given)):
        page = html(made)
        assert not re.search(r"<(script|img|a|em|strong|h1|hr|del)\b", page)
        assert all(word in page for word in visible)
    assert html(fenced(given)).count("<pre>") == 1
