"""Unsloth's compiled trainer under the facts of four cards, on this CPU.

emulated_gpu.py says how that is done and what it cannot show; scenarios.py holds what is run, each machine in a process of
its own; here it is judged. What is private to Unsloth, TRL or transformers and renamed by an upgrade turns this red before a
GPU does.
"""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import emulated_gpu
import pytest

from workbench.training.features.turns import UNMASKED

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Waiting for the processes is a test's set-up, and a busy machine takes long.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PATIENCE_S = 3000


class Machine(NamedTuple):
    """A card, a backend, and the scenarios that its process runs."""

    card: str
    backend: str
    scenarios: tuple[str, ...]


TRAINING = (
    "precision",
    "float32",
    "advantages",
    "turns",
    "around",
    "continuing",
    "steering",
    "health",
    "four_bit",
    "names",
    "doctor",
)
MACHINES = {
    "T4": Machine("T4", "unsloth", (*TRAINING, "overflow")),
    "A100": Machine("A100", "unsloth", (*TRAINING, "kernels", "adapters")),
    "2xT4": Machine("2xT4", "unsloth", ("precision", "doctor")),
    "L4": Machine("L4", "unsloth", ("precision", "doctor")),
    "2xT4, transformers": Machine("2xT4", "transformers", ("precision", "plain_four_bit")),
}
CARDS = ("T4", "A100", "2xT4", "L4")


def on(*names: str) -> Any:
    """The machines that a test is about."""
    return pytest.mark.parametrize("machine", names, indirect=True)


Found = Callable[[str], Any]


@pytest.fixture(scope="module")
def machines(request, tmp_path_factory) -> Iterator[dict[str, Future[Found]]]:
    """The processes of the machines that the selected tests are about, two at a time."""
    asked = [item.callspec.params.get("machine") for item in request.session.items if hasattr(item, "callspec")]
    folder, running = tmp_path_factory.mktemp("emulated"), []
    pool = ThreadPoolExecutor(2)
    try:
        yield {name: pool.submit(_run, machine, folder, running) for name, machine in MACHINES.items() if name in asked}
    finally:
        for process in running:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _run(machine: Machine, shared: Path, running: list[subprocess.Popen]) -> Found:
    folder = shared / f"{machine.card}-{machine.backend}"
    folder.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WORKBENCH_HOME": str(folder),
        "UNSLOTH_COMPILE_LOCATION": str(folder / "compiled"),
    }
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):
        # Compiling some 5,000 modules of the libraries is half of what an import costs.
        environment["PYTHONPYCACHEPREFIX"] = str(shared / "bytecode")
    command = [
        sys.executable,
        str(HERE / "scenarios.py"),
        machine.card,
        machine.backend,
        str(folder),
        *machine.scenarios,
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)
        running.append(process)
        try:
            ended = f"ended with {process.wait(PATIENCE_S)}"
        except subprocess.TimeoutExpired:
            process.kill()
            ended = f"did not end in {PATIENCE_S} s"
    said = (folder / "log").read_text(errors="replace")[-3000:]

    def found(name: str) -> Any:
        file = folder / f"{name}.json"
        if not file.is_file():
            pytest.fail(f"{machine.card}: nothing of {name}; the process {ended} and said last:\n{said}", pytrace=False)
        content = json.loads(file.read_text(encoding="utf-8"))
        if "error" in content:
            pytest.fail(f"{machine.card}, {name}, in its own process:\n{content['error']}", pytrace=False)
        return content["found"]

    return found


@pytest.fixture
def machine(request, machines) -> Found:
    """What a machine's process found, by scenario."""
    return machines[request.param].result()


@pytest.fixture
def card(request) -> emulated_gpu.Card:
    """The facts of the machine that a test is about."""
    return emulated_gpu.CARDS[MACHINES[request.node.callspec.params["machine"]].card]


# --- the trainer and its names ----------------------------------------------------------------------------------------


@on(*CARDS)
def test_the_trainer_is_the_one_that_unsloth_compiles(machine):
    assert machine("facts")["trainer"] == "UnslothGRPOTrainer.UnslothGRPOTrainer"
    assert machine("precision")["trainer"] == "UnslothGRPOTrainer.UnslothGRPOTrainer"


@on("T4", "A100")
def test_every_name_that_the_workbench_uses_of_a_trainer_is_there(machine):
    found = machine("names")
    # If the scan finds less than is known to be used, it is the scan that is broken.
    assert {"_generate", "_step", "_buffered_inputs", "_get_train_sampler", "_save_checkpoint"} <= set(found["used"])
    assert found["missing"] == []
    assert [called for called, there in found["calls"].items() if not there] == []
    assert found["missing_if_renamed"] == ["_generate"]  # so that the scan can tell
    assert found["left"], "prompts are not padded on the left"


@on("T4", "A100")
def test_what_the_workbench_asks_of_unsloths_class_is_accepted(machine):
    accepted = machine("names")["accepted"]
    asked = {
        "from_pretrained": {"model_name", "max_seq_length", "dtype", "load_in_4bit"},
        "get_peft_model": {
            "r", "lora_alpha", "lora_dropout", "target_modules", "bias", "use_gradient_checkpointing", "random_state",
        },
        "for_inference": {"model"},
        "for_training": {"model"},
    }  # fmt: skip
    assert {name: asked[name] - set(accepted[name]) for name in asked} == {name: set() for name in asked}


@on("T4", "A100")
def test_every_generation_goes_through_the_workbenchs_hook(machine):
    found = machine("names")
    generation = found["generation"]
    assert generation["calls"] == {"workbench": 0, "trl": found["generated"]}
    assert "Unsloth's decoding" in generation["why"]


def test_a_stub_whose_target_is_gone_is_named():
    with pytest.raises(emulated_gpu.Gone, match=r"torch\.cuda\.renamed_by_an_upgrade is gone from torch \d"):
        emulated_gpu.put("torch.cuda.renamed_by_an_upgrade", None)
    with pytest.raises(emulated_gpu.Gone, match=r"torch\.gone\.altogether"):
        emulated_gpu.put("torch.gone.altogether", None)


@on("A100")
def test_the_plain_norms_rotations_and_gates_are_unsloths(machine):
    differ = machine("kernels")
    assert set(differ) == {"norm", "rotation", "gate", "gate backward"}
    assert max(differ.values()) < 1e-5, differ


# --- advantages -------------------------------------------------------------------------------------------------------

IN_FORCE = {
    "group": "group", "batch": "batch", "none": "none", "dr_grpo": "none", "dr_grpo, scaled": "group", "accumulated": "group",
}  # fmt: skip


@pytest.mark.parametrize("variant", IN_FORCE)
@on("T4", "A100")
def test_the_advantages_of_the_record_are_those_that_were_trained(machine, variant):
    found = machine("advantages")[variant]
    recorded, generated, learnt = found["recorded"], found["generated"], found["trained"]
    assert found["scale_rewards"] == IN_FORCE[variant]
    assert len(set(recorded)) > 2, "nothing to tell apart"
    assert recorded == pytest.approx(generated, abs=1e-6, rel=0)
    passes = 2 if variant == "accumulated" else 1  # num_iterations
    # The trainer shuffles a batch before it learns from it.
    assert sorted(learnt) == pytest.approx(sorted(generated * passes), abs=1e-6, rel=0)


@on("T4", "A100")
def test_scaling_changes_the_advantages(machine):
    """Or the test above could not tell one kind from another."""
    found = machine("advantages")
    first = {variant: found[variant]["recorded"][:8] for variant in IN_FORCE}  # of the same eight completions
    sizes = {kind: max(map(abs, first[kind])) for kind in ("group", "batch", "none")}
    assert len({round(size, 3) for size in sizes.values()}) == 3, sizes
    assert first["dr_grpo"] == first["none"]
    assert first["dr_grpo, scaled"] == first["group"]


# --- turns ------------------------------------------------------------------------------------------------------------


@on("T4", "A100")
def test_the_loss_leaves_out_what_the_record_says_the_policy_did_not_write(machine):
    found = machine("turns")
    assert "unsloth" in found["compiled"].lower()
    assert len(found["recorded"]) == 16
    assert {0, 1} == {one for mask in found["recorded"] for one in mask}
    assert found["recorded"] == found["generated"]
    assert sorted(found["recorded"]) == sorted(found["trained"])
    assert found["lengths"] == pytest.approx(found["logged"])


@on("T4", "A100")
def test_what_tools_said_is_named_where_it_counts_as_the_policys(machine):
    """unsloth#5673: the loss takes every token, and the record is told why."""
    found = machine("turns")
    assert found["told"] == [[UNMASKED], []]
    assert {one for mask in found["unmasked"] for one in mask} == {1}


# --- around the training ----------------------------------------------------------------------------------------------


@on("T4", "A100")
def test_measuring_held_out_prompts_changes_nothing_that_unsloths_trainer_trains(machine):
    found = machine("around")
    assert found["failed"] == []
    assert found["same"]
    assert found["measured"] == [0, 1, 2]


@on("T4", "A100")
def test_a_warm_start_goes_through_unsloths_own_trainer(machine):
    found = machine("around")
    assert found["warmed"] == [[0, True], [0, False], [1, False], [2, False]]
    assert found["warm_start"]["trainer"].endswith("UnslothSFTTrainer")
    losses = found["warm_start"]["losses"]
    assert losses[-1] < losses[0]
    assert found["result"] == {"status": "finished", "steps": 2}


# --- stop and go on ---------------------------------------------------------------------------------------------------

EXACT = ("loss", "reward", "kl", "grad_norm", "learning_rate", "completions/mean_length")


@on("T4", "A100")
@pytest.mark.parametrize("name", EXACT)
def test_a_run_that_goes_on_is_equal_to_the_bit_to_one_that_never_stopped(machine, name):
    found = machine("continuing")
    assert found["stopped"] == {"status": "stopped", "steps": 2}
    assert found["result"] == {"status": "finished", "steps": 4}
    assert found["inexact"] == [None]
    rows = found["whole"]
    assert [row["step"] for row in rows] == [row["step"] for row in found["part"]] == [1, 2, 3, 4]
    values = [row[name] for row in rows]
    assert all(map(math.isfinite, values))
    assert len(set(values)) > 1
    assert [row[name] for row in found["part"]] == values


@on("T4", "A100")
def test_its_adapter_and_its_record_are_the_same_too(machine):
    found = machine("continuing")
    assert len(found["adapter"]) == 42  # A and B of seven layers in each of three blocks
    assert [name for name, same in found["adapter"].items() if not same] == []
    assert found["same_rollouts"]


@on("T4", "A100")
def test_the_state_of_the_gpus_generator_is_saved_and_put_back(machine):
    generator = machine("continuing")["generator"]
    assert generator["saved"] > 0
    assert generator["saved"] in generator["put_back"]


@on("T4", "A100")
def test_the_gradient_scaler_of_float16_goes_on_too(machine, card):
    whole, part = machine("continuing")["scalers"]
    assert whole == part
    assert (whole and whole["_growth_tracker"]) == (None if card.native_bf16 else 4)  # steps since its last change


# --- steering ---------------------------------------------------------------------------------------------------------

FORMAT, LENGTH = "strict_format_reward", "length_reward"


@on("T4", "A100")
def test_every_request_is_answered_at_its_step(machine):
    answers = machine("steering")["answers"]
    assert {action: answer["applied"] for action, answer in answers.items()} == dict.fromkeys(answers, True)
    boundary = {"weight": 2, "beta": 2, "learning_rate": 3, "mute": 3, "checkpoint": 3, "sample": 3, "stop": 4}
    assert {action: answer["step"] for action, answer in answers.items()} == boundary
    assert {action: answer["from_step"] for action, answer in answers.items()} == {
        action: step + 1 for action, step in boundary.items()
    }


@on("T4", "A100")
def test_weights_are_changed_where_the_trainer_and_the_record_have_them(machine):
    found = machine("steering")
    before = found["generated"][0]["weights"]
    assert before[FORMAT] != 2.5
    assert before[LENGTH] != 0
    heavy, muted = {**before, FORMAT: 2.5}, {**before, FORMAT: 2.5, LENGTH: 0.0}
    # What the trainer scored with, by step; what the record says of each completion; and the row of metrics.
    assert {batch["step"]: batch["weights"] for batch in found["generated"]} == {
        1: before, 2: before, 3: heavy, 4: muted,
    }  # fmt: skip
    for row in found["weights"]:
        weights = {1: before, 2: before, 3: heavy, 4: muted}[row["step"]]
        assert (row["format"], row["length"]) == (weights[FORMAT], weights[LENGTH])
    assert [row[f"rewards/{FORMAT}/weight"] for row in found["rows"]] == [before[FORMAT]] * 2 + [2.5] * 2
    assert [row[f"rewards/{LENGTH}/weight"] for row in found["rows"]] == [before[LENGTH]] * 3 + [0.0]


@on("T4", "A100")
def test_beta_and_learning_rate_are_changed_in_the_trainer(machine):
    found = machine("steering")
    trained = {one["step"]: (one["beta"], one["learning_rate"]) for one in found["trained"]}
    assert trained == {1: (0.0, 5e-3), 2: (0.0, 5e-3), 3: (0.05, 5e-3), 4: (0.05, 2e-3)}
    measured = ["kl" in row for row in found["rows"]]
    assert measured == [False, False, True, True]
    assert found["rows"][3]["kl"] > 0


@on("T4", "A100")
def test_checkpoint_sample_and_stop(machine):
    found = machine("steering")
    assert found["result"] == {"status": "stopped", "steps": 4}
    assert found["checkpoints"] == ["checkpoint-3", "checkpoint-4", "final"]
    assert found["samples"] == 4


# --- the record and the run's health ----------------------------------------------------------------------------------


def expected_on_a_gpu() -> set[str]:
    """The names that tests/gpu expects of a run on a GPU."""
    tree = ast.parse((ROOT / "tests" / "gpu" / "test_on_a_gpu.py").read_text(encoding="utf-8"))
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METRICS"
    ]
    return names


@on("T4", "A100")
def test_the_metrics_have_the_names_that_are_drawn(machine):
    for row in machine("continuing")["whole"]:
        assert set(row) >= expected_on_a_gpu()
        assert all(math.isfinite(row[name]) for name in expected_on_a_gpu())


@on("T4", "A100")
def test_an_ill_run_is_named(machine):
    found = machine("health")
    assert found["watchdog_failed"] == []
    alarms = [(event["name"], event["function"]) for event in found["events"] if event["state"] == "alarm"]
    # Nothing pays in twelve tokens, and the second function could not in any number.
    assert set(alarms) == {
        ("truncation", ""), ("dead_groups", ""), ("reward_cannot_pay", "correctness_reward"),
        ("reward_cannot_pay", "one_line_reward"),
    }  # fmt: skip
    assert len(alarms) == 4  # each said once
    assert {(one["name"], one["function"]) for one in found["found"] if one["state"] == "alarm"} == set(alarms)
    assert {name for name, state in found["examined"].items() if state == "alarm"} == {name for name, _ in alarms}


# --- 4 bits -----------------------------------------------------------------------------------------------------------


@on("T4", "A100")
def test_four_bits_are_loaded_and_trained_through_the_fused_adapters(machine, card):
    found = machine("four_bit")
    assert found["layers"] == found["still_4bit"] == 7 * found["hidden_layers"] == found["policy"]["linear4bit"]
    assert (found["policy"]["precision"], found["policy"]["compute_dtype"]) == ("nf4", card.dtype)
    assert found["unpacked_differs_by"] == 0
    assert found["fused"] == ["apply_lora_qkv", "apply_lora_o", "apply_lora_mlp_swiglu"]
    # The backward pass of the fused gates, and bitsandbytes' weights unpacked as Unsloth asks for them.
    assert min(found["calls"].get(name, 0) for name in ("plain_gate_backward", "unpack")) > 0, found["calls"]
    assert found["trainer"] == "UnslothGRPOTrainer.UnslothGRPOTrainer"
    assert found["result"] == {"status": "finished", "steps": 2}
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in found["rows"])


@on("T4", "A100")
def test_the_adapter_of_a_4_bit_policy_is_float32_and_moves(machine):
    found = machine("four_bit")
    assert found["before"] == found["after"] == ["torch.float32"]
    assert len(found["moved"]) == 21
    assert all(found["moved"])


# --- adapters that one already has -------------------------------------------------------------------------------------


@on("A100")
@pytest.mark.parametrize("layout", ["unsloth", "llama_factory"])
def test_unsloths_trainer_measures_kl_from_the_named_reference(machine, layout):
    base, adapter = (machine("adapters")[f"{layout}, {reference}"] for reference in ("base", "adapter"))
    assert (base["said"], adapter["said"]) == ("base", "adapter")
    # Its loss computes the policy's log-probabilities otherwise than the reference's: in bfloat16 they differ in the last bit.
    assert 0 <= adapter["kl"] < base["kl"] / 20
    assert min(base["moved"], adapter["moved"]) > 0


# --- what a card makes of precision and batch -------------------------------------------------------------------------


@on(*CARDS)
def test_the_type_of_the_card_is_in_force(machine, card):
    found = machine("precision")
    words = {"bf16": card.native_bf16, "fp16": not card.native_bf16}
    assert found["bf16_supported"] == card.native_bf16
    assert found["in_force"] == found["args"] == words
    assert found["mixed"] == ("bf16" if card.native_bf16 else "fp16")
    assert found["weights"] == [f"torch.{card.dtype}"]
    assert found["adapter"] == ["torch.float32"]
    assert found["policy"]["compute_dtype"] == card.dtype
    assert found["policy"]["device"] == card.name
    assert all(math.isfinite(row["loss"]) for row in found["rows"])


@on(*CARDS)
def test_only_float16_has_a_gradient_scaler(machine, card):
    scaler = machine("precision")["scaler"]
    if card.native_bf16:
        assert scaler is None
    else:
        assert scaler["enabled"]
        assert scaler["scale"] > 1


@on(*CARDS)
def test_the_plan_says_what_is_in_force(machine, card):
    found = machine("precision")
    assert found["plan"]["rows"] == found["in_force"]
    assert "Unsloth's decoding" in found["plan"]["generation"]
    assert f"of {card.gib * 2**30 / 1e9:.1f} GB" in found["plan"]["memory"]
    assert found["plan"]["words"].startswith("2 steps; each learns from 8 completions")


@on(*CARDS)
def test_the_plan_says_what_becomes_of_another_type(machine, card):
    found = machine("precision")

    def told(asked: str, words: str) -> bool:
        return any(words in note for note in found[asked]["notes"])

    assert told("bf16 asked", "bf16 = True is left out") != card.native_bf16
    assert told("fp16 asked", "fp16 = True is left out") == card.native_bf16
    assert told("bfloat16 asked", "policy.dtype = 'bfloat16' becomes 'float16'") != card.native_bf16
    for asked in ("bf16 asked", "fp16 asked", "bfloat16 asked"):
        assert found[asked]["rows"] == found["in_force"], asked


@on(*CARDS)
def test_the_doctor_tells_the_card(machine, card):
    found = machine("doctor")
    assert (found["GPU"]["works"], found["GPU"]["detail"]) == (True, f"{card.name}, {card.gib:.0f} GiB")
    assert found["bfloat16"]["works"] == card.native_bf16
    assert found["bfloat16"]["detail"].startswith("native" if card.native_bf16 else "not native")
    assert found["4-bit policy"]["works"], found["4-bit policy"]
    assert "21 Linear4bit layers" in found["4-bit policy"]["detail"]
    assert "CPU" not in found["4-bit policy"]["detail"]


@on("2xT4", "2xT4, transformers")
def test_two_gpus_do_not_double_the_batch(machine):
    found = machine("precision")
    assert found["device_count"] == 2
    assert (found["n_gpu"], found["train_batch_size"]) == (1, 8)
    assert found["parallel"] != "DataParallel"
    assert found["completions"] == [8, 8]
    assert found["rollouts"] == 16
    assert any("2 GPUs, and a run trains on one" in note for note in found["plan"]["notes"])


@on("2xT4, transformers")
def test_the_plain_backend_stays_with_trls_trainer_and_float16(machine, card):
    found = machine("precision")
    assert found["trainer"].startswith("trl.")
    assert found["in_force"] == {"bf16": False, "fp16": True}
    assert found["plan"]["rows"] == found["in_force"]
    assert found["weights"] == ["torch.float16"]
    assert found["scaler"]["enabled"]


@on("2xT4, transformers")
def test_the_plain_backends_4_bit_adapter_is_float32_and_moves(machine):
    found = machine("plain_four_bit")
    assert (found["policy"]["linear4bit"], found["policy"]["compute_dtype"]) == (21, "float16")
    assert found["before"] == found["after"] == ["torch.float32"]
    assert all(found["moved"])
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in found["rows"])


@on("T4")
def test_a_gradient_that_overflows_in_float16_costs_one_step(machine):
    found = machine("overflow")
    assert found["result"] == {"status": "finished", "steps": 4}
    assert found["scale"] == 2**15  # half of what it began with
    assert found["moved"] == {"1": False, "2": True, "3": True}  # of the steps after
    assert [row["grad_norm"] == "inf" for row in found["rows"]] == [False, True, False, False]
    assert [one["state"] for one in found["health"] if one["name"] == "non_finite"] == []


@on("T4", "A100")
def test_a_policy_in_float32_trains_and_cispo_has_its_cap(machine, card):
    found = machine("float32")
    # Unsloth's trainer computes in bfloat16 where there is one, also on weights in float32; plan says so.
    assert found["precision"] == {"bf16": card.native_bf16, "fp16": False}
    assert found["weights"] == ["torch.float32"]
    assert found["epsilon_high"] == 5.0
    assert found["status"] == "finished"
