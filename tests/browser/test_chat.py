"""The chat in JupyterLab in a real browser: both answers, an Interrupt, and the saved text."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from driving import keep_screenshots, open_notebook

# The embedded policy and a random adapter. To the second question it takes its time: time to stop it.
CELL = """\
import time
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
import workbench as wb
from workbench.tiny import MODEL_DIR

model = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32), LoraConfig(task_type="CAUSAL_LM"))
for saved in (model, AutoTokenizer.from_pretrained(MODEL_DIR)):
    saved.save_pretrained(wb.resolve("adapter"))
chat = wb.chat(wb.resolve("adapter"), "What is 15 + 27?", max_completion_length=300)
chat.asked.answer("Hello")
model = chat.asked._readers[False].model.get_base_model()
forward = model.forward

def slow(*arguments, **options):
    if len(chat.turns) > 1:
        time.sleep(0.5)
    return forward(*arguments, **options)

model.forward = slow
chat"""


@pytest.mark.slow
def test_ask_see_both_answers_and_interrupt(jupyterlab, page):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cell = nbformat.v4.new_code_cell(CELL)
    file = jupyterlab.folder / "chat.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), file)
    open_notebook(page, jupyterlab, "chat.ipynb")
    box, shown = (
        page.locator(".workbench-question textarea"),
        page.locator(".jp-OutputArea-output").filter(has_text="ended by EOS"),
    )
    box.wait_for()
    assert box.input_value() == "What is 15 + 27?"
    page.get_by_role("button", name="Send").click()
    page.get_by_text("tokens, ended by EOS").nth(1).wait_for()
    assert box.input_value() == ""
    page.screenshot(path=str(jupyterlab.home / "chat.png"))

    hostile = "<img src=x onerror='window.hacked=1'> $x^2$"
    box.fill(hostile)
    page.get_by_role("button", name="Send").click()
    page.get_by_text("writing …: interrupt the kernel to stop").first.wait_for()
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Interrupt Kernel").click()
    page.get_by_text(re.compile("^trained: 0 tokens, stopped")).wait_for()
    ends = [text for text in shown.first.locator("td pre").all_inner_texts() if "stopped" in text]
    assert len(ends) == 1, "the base was not begun"
    assert page.evaluate("() => window.hacked") is None
    assert hostile in shown.first.inner_text()
    assert not shown.first.locator("img, script, mjx-container").count()
    page.screenshot(path=str(jupyterlab.home / "chat_stopped.png"))
    keep_screenshots(jupyterlab.home)

    page.keyboard.press("Control+s")
    page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    [saved] = [cell for cell in json.loads(file.read_text())["cells"] if "wb.chat" in "".join(cell["source"])]
    text = "".join(saved["outputs"][-2]["data"]["text/plain"])
    assert text.count("ended by EOS") == 2
    assert hostile in text
