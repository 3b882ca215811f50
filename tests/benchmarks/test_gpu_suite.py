"""The GPU suite at toy size on the CPU, from its command line to its table, and its arithmetic."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if str(BENCHMARKS) not in sys.path:
    sys.path.append(str(BENCHMARKS))

from gpu import arms, controls, hardware, learning, memory, notebooks, one_unit, processes, run, table, units  # noqa: E402
from gpu.setting import FULL, TOY, Setting  # noqa: E402

ARMS = ("unsloth-nf4-auto-16-r0", "transformers-bf16-trl-16", "transformers-bf16-auto-16", "unsloth-nf4-auto-32")


WHOLE, CUT = (units.Unit("transformers", "bf16", generation, 16) for generation in ("trl", "auto"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(exit status, folder of results) of all parts but the notebooks, which have tests of their own.

    Two units have a process of their own, which is killed, as by its time, while it measures the second.
    """
    out = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WORKBENCH_HOME", "HF_HUB_OFFLINE"):  # which the command sets
            patch.setenv(name, os.environ.get(name, ""))
        given = setting(out, left_s=400, fresh=True)
        one_unit.build(given)
        with patch.context() as inner:
            inner.setattr(subprocess.Popen, "wait", until_its_second_unit_has_a_row(given))
            arms._measure(given, [WHOLE, CUT])
        yield run.main(words(out)), out


def until_its_second_unit_has_a_row(given: Setting):
    wait = subprocess.Popen.wait

    def waits(process, timeout=None):
        while timeout and process.poll() is None:
            assert timeout <= 400
            if len((given.read(one_unit.file_of(CUT)) or {}).get("rows", [])) == 1:
                raise subprocess.TimeoutExpired(process.args, timeout)
            time.sleep(0.01)
        return wait(process)

    return waits


def words(out: Path, *parts: str, only: tuple[str, ...] = ARMS) -> list[str]:
    parts = parts or ("controls", "arms", "memory", "learning")
    asked = ["--device", "cpu", "--out", str(out), "--minutes", "13"]
    return [*asked, *(f"--part={part}" for part in parts), *(f"--only={text}" for text in only)]


def read(file: Path) -> dict:
    return json.loads(file.read_text())


def setting(out: Path, left_s: float = 800, **other) -> Setting:
    given = dict(fresh=False, only=ARMS) | other
    return Setting("cpu", TOY, out, out / "work", time.monotonic() + left_s, **given)


@pytest.mark.weekly
def test_every_part_ran_and_every_check_holds(made):
    status, out = made
    for part in ("controls", "memory", "learning"):
        found = read(out / f"{part}.json")
        assert [check for check in found["checks"] if check["passed"] is False] == []
        assert found["done"], part
    assert status == 0


@pytest.mark.weekly
def test_every_file_says_where_and_with_what_it_was_measured_and_one_has_them_all(made):
    files = [file for file in (*made[1].glob("*.json"), *made[1].glob("arms/*.json")) if file.name != "all.json"]
    assert len(files) == 5 + 6
    for file in files:
        found = read(file)
        assert {"date", "machine", "versions", "device"} <= set(found)
        assert found["toy"] is True
        assert found["device"]["kind"] == "cpu"
        assert str(made[1]) not in file.read_text()
    assert read(made[1] / "all.json")["files"] == {str(file.relative_to(made[1])): read(file) for file in files}


@pytest.mark.weekly
def test_what_was_steered_is_in_the_record(made):
    found = read(made[1] / "controls.json")
    assert set(found["steering"]["answers"]) == {"weight", "beta", "learning_rate", "pause", "resume", "stop"}
    assert len(found["steering"]["checks"]) == 11
    assert set(found["continuing"]["largest_differences"].values()) == {0.0}
    assert {"reward", "loss", "kl", "grad_norm"} <= set(found["continuing"]["largest_differences"])
    assert found["continuing"]["same_completions"] == 1.0
    for who in ("unsloth", "workbench"):
        assert found["exporting"][who]["passed"]
        assert found["exporting"][who]["dtype"] in ("bfloat16", "float16")


@pytest.mark.weekly
def test_an_arm_has_its_steps_its_split_and_its_tokens(made):
    found = read(made[1] / one_unit.file_of(WHOLE))
    assert found["status"] == "measured"
    assert (found["steps"], found["warm"]) == (1, True)
    assert found["result"]["status"] == "stopped"  # by the clock, after the fewest steps
    assert [row["step"] for row in found["rows"]] == [1, 2]
    for row in found["rows"]:
        assert row["generate_s"] + row["train_s"] + row["reward_s"] == pytest.approx(row["seconds"])
        assert 0.9 * 64 * 16 < row["tokens"] <= 64 * 16
        assert row["grad_norm"] > 0
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["step_s"])
    assert found["generation"]["by"] == "trl"
    auto = read(made[1] / one_unit.file_of(units.Unit("unsloth", "nf4", "auto", 16)))
    assert auto["generation"]["by"] == "workbench"
    assert not auto["generation"].get("planned")


@pytest.mark.weekly
def test_where_the_time_is_short_a_long_completion_has_one_step_and_it_is_marked(made):
    found = read(made[1] / "arms" / "unsloth-nf4-auto-32-r0.json")
    assert (found["steps"], found["warm"], len(found["rows"])) == (1, False, 1)
    assert found["result"]["status"] == "finished"
    assert found["nth_in_process"] == 2  # with the policy of the others


@pytest.mark.weekly
def test_gradient_checkpointing_is_off_where_the_unit_says_so_and_the_estimate_knows(made):
    needed = {}
    for variant, on in (("", True), ("unchecked", False)):
        unit = units.Unit("unsloth", "nf4", "auto", 16, variant=variant)
        found = read(made[1] / one_unit.file_of(unit))
        assert found["settings"]["gradient_checkpointing"] is on
        needed[on] = found["estimate"]["phases"]["training"]["bytes"]
    assert needed[True] < needed[False]


@pytest.mark.weekly
def test_the_index_says_how_far_it_came_and_what_was_noise(made):
    found = read(made[1] / "arms.json")
    measured = [name for name, word in found["status"].items() if word in ("measured", "cut short")]
    assert measured == [name for name in found["status"] if any(text in name for text in ARMS)]
    assert found["status"]["unsloth-bf16-auto-32-r0"] == "not reached"
    assert not found["done"]
    assert list(found["a_over_a"]) == ["unsloth-nf4-auto-16-r0"]
    assert list(found["trl_over_auto"]) == ["transformers-bf16-auto-16-r0"]
    assert 0 < found["roofline_share"]["unsloth-nf4-auto-16-r0"] < 1


@pytest.mark.weekly
def test_it_learned_as_far_as_a_toy_can(made):
    found = read(made[1] / "learning.json")
    assert found["steps"] == TOY.learned_steps == len(found["curve"]["reward"])
    assert found["held_out"]["prompts"] == TOY.held_out
    assert found["taught"]["losses"][-1] < found["taught"]["losses"][0]
    assert (made[1] / "learning.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.weekly
def test_the_table_holds_what_was_measured_and_says_what_was_not(made, tmp_path):
    text = table.markdown(made[1])
    assert "measures nothing" in text
    assert "11 of 11 hold" in text
    [row] = [line for line in text.splitlines() if line.startswith("| TRL bf16, generation: trl | 16 | ") and "| trl |" in line]
    assert "| trl | not measured | not measured | 1 x 1 |" in row
    assert "| 1 x 1, cold |" in text
    assert "Not reached: 8 of 14 units" in text
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "all.json").write_bytes((made[1] / "all.json").read_bytes())
    assert table.markdown(tmp_path / "brought") == table.markdown(tmp_path / "brought" / "all.json") == text
    empty = table.markdown(tmp_path / "nothing")
    assert "Device: not measured" in empty
    assert len([line for line in empty.splitlines() if "not measured" in line]) > 20


@pytest.mark.weekly
def test_a_second_call_measures_nothing_again(made):
    out = made[1]
    files = (*out.glob("arms/*.json"), out / "controls.json", out / "learning.json")
    before = {file: file.read_bytes() for file in files}
    assert run.main(words(out)) == 0
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.weekly
def test_an_arm_that_fails_is_kept_with_its_error_and_is_no_success(made, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "toy-model").symlink_to(made[1] / "work" / "toy-model")
    monkeypatch.setattr(one_unit, "_policy", lambda *_: 1 / 0)
    for name in ("WORKBENCH_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")
    assert run.main(words(tmp_path, "arms", only=ARMS[:1])) == 1
    found = read(tmp_path / "arms.json")
    assert found["status"]["unsloth-nf4-auto-16-r0"] == "failed"
    assert found["errors"]["unsloth-nf4-auto-16-r0"].startswith("ZeroDivisionError")


def test_what_was_ended_before_a_step_or_failed_after_others_is_tried_again(tmp_path):
    given, unit = setting(tmp_path), units.Unit("unsloth", "bf16", "auto", 16)
    for content, again in (
        ({"status": "measured", "step_s": 1.0}, False),
        ({"status": "cut short", "step_s": 1.0}, False),
        ({"status": "cut short"}, True),
        ({"status": "running"}, True),
        ({"status": "failed", "nth_in_process": 1}, True),
        ({"status": "failed", "nth_in_process": 0}, False),
    ):
        given.write(one_unit.file_of(unit), content)
        assert bool(arms._pending(given, [unit])) is again, content


@pytest.mark.weekly
def test_a_run_that_is_stopped_by_the_time_is_measured_and_goes_on(made, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "taught-toy").symlink_to(made[1] / "work" / "taught-toy")
    given = setting(tmp_path)
    given.write("taught.json", read(made[1] / "taught.json"))
    monkeypatch.setattr(learning.UntilDeadline, "__init__", stops_at_once)
    found = learning.run(given)
    assert (found["done"], found["result"]["status"]) == (False, "stopped")
    assert 0 < found["held_out"]["after_steps"] == found["steps"] < TOY.learned_steps
    assert read(tmp_path / "learning.json")["held_out"] == found["held_out"]
    monkeypatch.undo()
    found = learning.run(given)
    assert (found["done"], found["held_out"]["after_steps"]) == (True, TOY.learned_steps)


def stops_at_once(self, setting: Setting, reserve_s: float) -> None:
    self.setting, self.reserve_s = setting, 10_000


# --- processes of their own, as on a GPU --------------------------------------------------------------------------


@pytest.mark.weekly
def test_a_unit_that_is_cut_keeps_its_steps_and_what_was_known_before_them(made):
    whole, cut = (read(made[1] / one_unit.file_of(unit)) for unit in (WHOLE, CUT))
    assert (whole["status"], whole["nth_in_process"]) == ("measured", 0)
    assert (cut["status"], cut["nth_in_process"]) == ("cut short", 1)
    assert (cut["steps"], cut["warm"], len(cut["rows"])) == (1, False, 1)
    assert (cut["generation"]["by"], cut["generation"]["planned"]) == ("workbench", True)
    assert {"policy", "trainer", "settings", "estimate", "weight_bytes", "token_bytes", "prompt"} <= set(cut)
    assert arms.roofline_share(cut, 1e10) > 0
    assert "workbench, as planned" in table.markdown(made[1])


@pytest.mark.weekly
def test_parts_have_processes_of_their_own_and_a_stray_file_is_no_unit(made, tmp_path, monkeypatch):
    for name in ("WORKBENCH_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "stray.json").write_text("{}")
    shutil.copy(made[1] / one_unit.file_of(CUT), tmp_path / "arms")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "toy-model").symlink_to(made[1] / "work" / "toy-model")
    asked = ["--device", "cpu", "--fresh", "--out", str(tmp_path), "--minutes", "8", "--only", CUT.name]
    assert run.main([*asked, "--part", "arms", "--part", "memory"]) == 0
    kept = read(tmp_path / "all.json")["files"]
    assert kept["arms.json"]["status"][CUT.name] == "cut short"
    assert [row["unit"] for row in kept["memory.json"]["rows"]] == [CUT.name]
    assert "TRL bf16, generation: auto" in table.markdown(tmp_path)


def test_what_cannot_be_meant_is_an_error(capsys):
    assert run.main(["--device", "cpu", "--only", "no such arm"]) == 2
    assert "unsloth-nf4-auto-16-r0" in capsys.readouterr().err
    assert run.main(["--device", "cpu", "--minutes", "0"]) == 2


def test_a_job_that_is_none_is_an_error_and_no_process_outlives_its_time(tmp_path):
    status, said = processes.own_process(setting(tmp_path), "model", "--job", "model", limit_s=1)
    assert (status, said) == (None, "")
    with pytest.raises(ValueError, match="'no-unit' is no unit"):
        run._job(setting(tmp_path), "no-unit")


# --- what is judged -----------------------------------------------------------------------------------------------


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("computed_in", "also"),
    [("bfloat16", []), ("float32", ["it computed in bfloat16 or float16"])],
    ids=["a CPU with bfloat16", "one without"],
)
def test_a_run_on_the_cpu_is_no_run_on_a_gpu(made, monkeypatch, computed_in, also):
    from workbench.run.directory import open_run

    monkeypatch.setenv("WORKBENCH_HOME", str(made[1] / "work"))
    one = open_run(made[1] / "work" / "runs" / "learning-cpu")
    # What a policy computes in is the CPU's doing; a run of either kind must be told from one on a GPU.
    one.update_manifest(policy={**one.manifest()["policy"], "compute_dtype": computed_in})
    gain = {"gain": {"correct": 0.0, "low": -0.1, "high": 0.1}}
    one.write_json("evaluation.json", gain)
    one.write_json("export/merged_16bit/proof.json", {"passed": True})
    assert notebooks.judge(one, cuda=False, gain=False).failed == []
    assert notebooks.judge(one, cuda=True, gain=True).failed == [
        "the trainer is Unsloth's",
        "the policy was on the GPU",
        *also,
        "the held-out gain's interval lies above 0",
        "the first step's memory was measured",
    ]
    one.write_json("export/merged_16bit/proof.json", {"passed": False})
    assert notebooks.judge(one, cuda=False, gain=False).failed == ["the export is the policy that was trained"]


def test_a_run_that_went_on_otherwise_is_seen():
    rows = [{"step": step, "reward": 1.0, "kl": 0.1, "time/train_s": 1.0} for step in (1, 2, 3)]
    other = [{**row, "reward": 1.25 if row["step"] == 3 else 9.0, "time/train_s": 2.0} for row in rows]
    assert controls.largest_differences(rows, other, after=2) == {"step": 0, "reward": 0.25, "kl": 0}
    assert controls.largest_differences(rows, other[:2], after=2)["reward"] == float("inf")


def part(name: str, phase: str, size: int, allocated: bool = True) -> dict:
    return {"name": name, "phase": phase, "bytes": size, "low": size - 1, "high": size + 1, "allocated": allocated}


def test_the_estimate_is_compared_by_what_torch_counts(tmp_path):
    parts = [part("weights", "always", 100), part("cache", "generation", 30), part("activations", "training", 50)]
    parts.append(part("context", "always", 1000, allocated=False))
    estimate = {"parts": parts, "phases": {"generation": {}, "training": {}}}
    assert memory.counted_peak(estimate) == {"phase": "training", "bytes": 150, "low": 148, "high": 152}
    given = dataclasses.replace(setting(tmp_path), sizes=FULL)
    unit = units.Unit("unsloth", "nf4", "auto", 16)
    for measured, within, verdicts in ((200, False, [False, False, False]), (149, True, [True, True, True])):
        given.write(one_unit.file_of(unit), {"estimate": estimate, "step_s": 1.0, "allocated_bytes": measured})
        found = memory.run(given)
        [row] = found["rows"]
        assert (row["ratio"], row["within"]) == (150 / measured, within)
        assert [check["passed"] for check in found["checks"]] == verdicts
    given.write(one_unit.file_of(unit), {"estimate": estimate, "step_s": 1.0, "allocated_bytes": 120})
    assert [check["passed"] for check in memory.run(given)["checks"]] == [
        False,
        True,
        False,
    ]  # too much, not too little


# --- the plan, and the ceiling ------------------------------------------------------------------------------------


def test_the_plan_has_every_arm_at_every_length_by_process_and_turns_with_the_rounds():
    plan = units.plan((512, 2048), rounds=2)
    names = [unit.name for unit in plan]
    assert len(set(names)) == len(names) == 2 * 14
    arms_of_trl = {(u.precision, u.generation, u.completion) for u in plan if u.backend == "transformers"}
    assert len(arms_of_trl) == 2 * 2 * 2
    assert {(u.precision, u.generation, u.completion) for u in plan if u.backend == "unsloth"} == {
        (precision, "auto", length) for precision in ("bf16", "nf4") for length in (512, 2048)
    }
    assert names[:4] == [
        "unsloth-nf4-auto-512-r0", "unsloth-nf4-auto-512-r0-again", "unsloth-nf4-auto-2048-r0",
        "transformers-bf16-trl-512-r0",
    ]  # fmt: skip
    assert names[14] == "transformers-bf16-trl-512-r1"
    together = [process for process, _ in itertools.groupby(unit.process for unit in plan)]
    assert len(together) == len(set(together)) == 2 * 5
    assert [units.unit_of(name) for name in names] == plan
    wrong = ("unsloth-nf4-auto-512", "tensorflow-nf4-auto-512-r0", "unsloth-nf4-auto-many-r0", "", "learning")
    for name in (*wrong, "unsloth-nf4-auto-512-r0-twice", "unsloth-nf4-auto-512-r0-again-again"):
        with pytest.raises(ValueError, match="is no unit of the arms"):
            units.unit_of(name)


@pytest.mark.parametrize(
    ("sequences", "prompt", "tokens_per_s"),
    [(1, 0, 1553), (64, 299, 84_384)],
)
def test_the_ceiling_of_decoding(sequences, prompt, tokens_per_s):
    """Qwen2.5-1.5B in 16 bits on 4,800 GB/s, by hand: 3.09 GB of weights, 28 KiB of keys and values a token."""
    seconds = hardware.least_generation_s(
        bandwidth=4.8e12, weight_bytes=3_090_000_000, token_bytes=28 * 1024, sequences=sequences, prompt=prompt, steps=1
    )
    assert sequences / seconds == pytest.approx(tokens_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 4800e9), ("NVIDIA H100 80GB HBM3", 3350e9), ("NVIDIA H100 PCIe", 2000e9), ("Tesla T4", 320e9),
        ("NVIDIA A100-SXM4-80GB", 2039e9), ("NVIDIA A100-SXM4-40GB", 1555e9), ("NVIDIA L40S", 864e9), ("NVIDIA L4", 300e9),
        ("NVIDIA A10G", 600e9), ("NVIDIA GeForce RTX 4090", 1008e9), ("NVIDIA GT4000", None),
    ],
)  # fmt: skip
def test_a_gpus_bandwidth_is_known_by_its_name(name, rate):
    assert hardware.rated_bytes_per_s(name) == rate


def test_without_a_gpu_the_command_says_so(capsys, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run.main(["--out", str(tmp_path)]) == 2
    assert "the toy runs with --device cpu" in capsys.readouterr().err


def test_the_model_has_the_parameters_of_qwen2_5_1_5b():
    from gpu.models import QWEN2_5_1_5B

    from workbench.memory.shapes import from_config

    shape = from_config({"model_type": "qwen2", **QWEN2_5_1_5B})
    assert shape.parameters == 1_543_714_304  # as its card says: 1.54 B
    assert arms.planned(setting(Path("unused")))[0].name == "unsloth-nf4-auto-16-r0"
