"""The stop button of a notebook, in a real kernel: one Interrupt ends a training cell normally."""

from __future__ import annotations

import pytest
from driving import waited_for

from workbench.run.directory import open_run

TRAIN = """
from workbench.recipe import Recipe
from workbench.tiny.task import task
from workbench.training.trainer import train
from workbench.views.live import LivePlot
grpo = dict(max_steps=500, num_generations=4, per_device_train_batch_size=16, max_completion_length=48)
run = train(Recipe.of({"run_name": "long", "grpo": grpo}), task=task(64, 8), watchers=[LivePlot()])
"""


@pytest.mark.slow
def test_one_interrupt_ends_the_cell_normally_and_the_next_cell_runs(home):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(home), extra_arguments=["--log-level=ERROR"])
    said: list[str] = []
    try:
        request = client.execute(TRAIN)
        lines = home / "runs" / "long" / "metrics.jsonl"
        waited_for(lambda: lines.is_file() and lines.read_bytes().count(b"\n") >= 3)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=300)
        while reply["parent_header"]["msg_id"] != request:  # the answer to the question that every client begins with
            reply = client.get_shell_msg(timeout=300)
        assert reply["content"]["status"] == "ok"
        client.execute_interactive(
            "print(run.manifest()['result']['status'])",
            timeout=300,
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    run = open_run("long")
    assert run.manifest()["result"]["status"] == "stopped"
    assert run.manifest()["result"]["steps"] < 500
    assert [event["event"] for event in run.events()] == ["started", "control", "checkpoint", "stopped"]
    assert (run.adapter / "adapter_model.safetensors").is_file()
    assert "stopped" in "".join(said)
