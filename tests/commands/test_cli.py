"""The command line: help that teaches, exit codes that mean something, JSON and nothing else on standard output."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import typer
from commanding import workbench, workbench_process
from hostile import HOSTILE, in_a_terminal, obeyed, run_command
from running import Running

import workbench as wb
from workbench.base.errors import WorkbenchError
from workbench.base.instruments import places_in
from workbench.base.notebook import NOTEBOOKS
from workbench.commands import cli_after, cli_before, cli_start, cli_train
from workbench.commands.cli import app
from workbench.commands.cli_start import lab
from workbench.commands.command import GROUPS, as_typed, json_text, parameters_of
from workbench.commands.demo import run_notebooks
from workbench.commands.doctor import PROBES, tables
from workbench.commands.reporting import write_report
from workbench.data import reasons
from workbench.recipe import Recipe


def test_help_names_every_command_and_where_to_start():
    text = workbench_process("--help").stdout
    for word in (
        "demo",
        "plan",
        "train",
        "continue",
        "watch",
        "control",
        "check",
        "eval",
        "doctor",
        "export",
        "prove",
        "ask",
        "verify",
        "lab",
        "explain",
        "lesson",
        "Start with `workbench demo`",
    ):
        assert word in text


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "notebook",
        "plan",
        "train",
        "continue",
        "watch",
        "control",
        "check",
        "eval",
        "report",
        "doctor",
        "export",
        "prove",
        "ask",
        "verify",
        "lab",
        "explain",
        "lesson",
    ],
)
def test_every_command_explains_itself(command):
    result = workbench(command, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) > 8


def test_the_groups_of_the_help_hold_each_command_once():
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(typer.main.get_command(app).commands)


def test_each_summary_is_one_line_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = workbench("--help").stdout
    assert all(f"\n{title}:\n" in text for title in GROUPS)
    assert max(map(len, text.splitlines())) <= 80
    for name, command in typer.main.get_command(app).commands.items():
        summary, _, rest = command.help.partition("\n")
        assert re.search(rf"(?m)^  {name} +{re.escape(summary)}$", text)
        assert summary.endswith("."), name
        assert not rest.strip() or rest.startswith("\n"), f"{name}: the summary is a paragraph"


def test_the_stages_are_those_of_the_notebooks_in_their_order():
    stages = [title for title in GROUPS if title[0].isdigit()]
    assert [title.lower().replace(" ", "_") for title in stages] == list(NOTEBOOKS)


def test_help_names_no_type_of_python():
    for name in typer.main.get_command(app).commands:
        assert not re.findall(r"<[a-z].*?>", workbench(name, "--help").stdout), name


def test_every_argument_and_option_has_its_help():
    for name, each in typer.main.get_command(app).commands.items():
        assert [own.name for own in each.params if not own.help and own.name != "help"] == [], name


@pytest.mark.parametrize(
    ("entry", "name", "kind", "default"),
    [
        ("RUN: a run", "run", str, ...),
        ("RUN = latest: a run", "run", str, "latest"),
        ("[NAME]: a lesson", "name", str, None),
        ("[DETAILS]...: more", "details", list[str], None),
        ("--held-out N = 200 [2..]: prompts", "held_out", int, 200),
        ("--vram NUMBER as vram_gb: memory", "vram_gb", float, None),
        ("--from NAME as checkpoint: this one", "checkpoint", str, None),
        ("--set KEY=VALUE... as said: over the recipe", "said", list[str], None),
        ("--task TEXT = ...: the task", "task", str, ...),
        ("--greedy: also greedy", "greedy", bool, False),
        ("--best / --no-best: the best", "best", bool, None),
        ("--browser / --no-browser = true: open it", "browser", bool, True),
    ],
)
def test_a_line_of_a_docstring_is_an_argument_or_an_option(entry, name, kind, default):
    [made] = parameters_of(f"    {entry}")
    assert (made.name, made.annotation, made.default.default) == (name, kind, default)


OF_INSTRUMENTS = {name: importlib.import_module(place) for name, place in places_in("commands").items()}
COMMANDS = {**vars(cli_start), **vars(cli_before), **vars(cli_train), **vars(cli_after)}
COMMANDS |= {name: vars(module)[name] for name, module in OF_INSTRUMENTS.items()}
PASSED_ON = {
    "demo": run_notebooks,
    "probe": wb.audit_rewards,
    "replay": wb.replay,
    "plan": wb.plan,
    "continue": wb.continue_run,
    "eval": wb.evaluate,
    "report": write_report,
    "export": wb.export,
}
# What an instrument's command passes its options on to.
PASSED_ON |= {
    name: getattr(importlib.import_module(f"{module.__package__}.{place}"), function)
    for name, place, function in (
        ("trial", "trial", "trial"),
        ("duel", "planning", "plan_duel"),
        ("twin", "planning", "plan_twin"),
    )
    if (module := OF_INSTRUMENTS.get(name))
}


@pytest.mark.parametrize("command", PASSED_ON)
def test_an_option_that_a_command_passes_on_is_a_parameter_with_the_same_default(command):
    """The command says it again in its docstring, so that `--help` needs no library."""
    taken = inspect.signature(PASSED_ON[command]).parameters
    function = COMMANDS.get(command) or COMMANDS[f"{command}_"]
    own = inspect.signature(function).parameters
    described = re.split(r"\n\n(?:Args|Options):\n", inspect.getdoc(function))[1:]
    for option in parameters_of("\n".join(described)):
        if option.name not in own:
            assert option.name in taken
            if option.name != "deadline_s":  # the tests themselves raise it (conftest.py)
                assert option.default.default == taken[option.name].default, option.name


def test_bounds_are_read():
    [made] = parameters_of("    --port N = 8888 [1..65535]: its port,\n        in two lines")
    assert (made.default.min, made.default.max, made.default.help) == (1, 65535, "its port, in two lines")
    [made] = parameters_of("    --every NUMBER = 1 [0.1..]: seconds")
    assert (made.default.min, made.default.max) == (0.1, None)


@pytest.mark.parametrize("line", ["--from name: lower case", "--from NAME (checkpoint): a dialect", "run a run"])
def test_a_line_that_is_no_entry_is_refused_and_not_lost(line):
    with pytest.raises(ValueError, match="not `NAME: help`"):
        parameters_of(f"    RUN: a run\n    {line}")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["doctr"], "'doctor'"),
        (["contineu"], "'continue'"),
        (["inspect"], "eval, report"),
        (["dataset"], "check"),
        (["--verson"], "--version"),
        (["probe", "arithmetic", "--promts", "3"], "--prompts"),
        (["plan", "cp"], "'cpu'"),
        (["check", "arithmetc"], "'arithmetic'"),
        (["control", "latest", "stop", "--tiemout", "5"], "'--timeout'"),
        (["plan", "cpu", "--set", "learnign_rate=1"], "'learning_rate'"),
        (["probe", "arithmetic", "--weight", "lenght_reward=0"], "'length_reward'"),
        (["probe", "arithmetik"], "'arithmetic'"),
        (["explain", "reward_sdt"], "'reward_std'"),
        (["lesson", "broken_run"], "'broken_runs'"),
        (["notebook", "trian"], "'train'"),
    ],
)
def test_what_is_misspelt_is_told_the_nearest(arguments, meant):
    result = workbench(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    told = [line for line in result.stderr.splitlines() if not line.startswith("  in: ")]  # the recipe's file
    assert meant in told[-1]


@pytest.mark.parametrize("command", [(), ("plan",), ("control",)])
def test_h_is_help(command):
    assert workbench(*command, "-h") == workbench(*command, "--help")


def test_an_error_is_three_lines_and_exit_code_2(tmp_path):
    result = workbench("train", str(tmp_path / "none.yaml"))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "RecipeError" in result.stderr
    assert "rule:" in result.stderr
    assert "remedy:" in result.stderr


@pytest.mark.parametrize("name", ["../escape", "my run"])
def test_a_demo_with_a_bad_name_is_refused_before_anything_is_written(tmp_path, name):
    result = workbench("demo", "--name", name, home=tmp_path)
    assert result.returncode == 2
    assert "run_name = " in result.stderr
    assert not list(tmp_path.iterdir())


PRINTS = f"""
import dataclasses
from workbench.tiny.task import task as arithmetic

def right_number(completions, answer, **kwargs):
    print({HOSTILE!r})
    return [float(right in text[0]["content"]) for text, right in zip(completions, answer)]

task = dataclasses.replace(arithmetic(32, 8), reward_funcs=[right_number], right_by=None, format_by=None)
"""


@pytest.mark.parametrize("port", ["0", "65536", "99999999"])
def test_a_port_that_no_browser_opens_is_refused(port):
    result = workbench("lab", "--port", port)
    assert result.returncode == 2
    assert "--port" in result.stderr


@pytest.mark.slow
def test_train_prints_one_json_object_and_what_a_reward_prints_reaches_the_terminal_as_text(tmp_path):
    (tmp_path / "task.py").write_text(PRINTS)
    grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
    Recipe.of({"run_name": "cli", "grpo": grpo, "task": "task.py"}).save(tmp_path / "recipe.yaml")
    arguments = ("train", "recipe.yaml", "--json", "--run-name", "named")
    code, shown, printed = in_a_terminal(*arguments, home=tmp_path, stdout=False)
    assert code == 0, shown
    found = json.loads(printed)
    assert found["run"] == str(tmp_path / "runs" / "named")
    assert (found["status"], found["steps"]) == ("finished", 1)
    assert "\x1b[2K" in shown, "a bar was drawn"
    assert r"\x1b]52;c;bWFsaWNl\x07" in shown
    assert obeyed(shown, bar=True) == []
    assert "SFTTrainer" not in shown
    assert "chunked CE" not in shown


ROWS = [
    {"question": f"{HOSTILE} 1 + 1?", HOSTILE: "2", "answer": "2"},
    {"question": f"{HOSTILE} 1 + 1?", HOSTILE: "3", "answer": "3"},
    {"question": HOSTILE, "answer": ""},
]
RAISES = f"""
from workbench.task import Task

def evil_reward(completions, **kwargs):
    print(completions[0], {HOSTILE!r})
    raise ValueError({HOSTILE!r})

task = Task({HOSTILE!r}, [{{"prompt": {HOSTILE!r} + str(n), "answer": str(n)}} for n in range(8)], [evil_reward])
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check", "rows.jsonl"], 0),
        (["check", "rows.jsonl", "--json"], 0),
        (["check", "rows.jsonl", "--answer", HOSTILE], 0),
        (["check", f"{HOSTILE}.jsonl"], 2),
        (["check", "rows.py"], 2),
        (["probe", "task.py"], 1),
        (["probe", "task.py", "--json"], 1),
        (["probe", HOSTILE], 2),
        (["replay", HOSTILE, "--task", "task.py"], 2),
        (["watch", HOSTILE], 2),
        (["control", HOSTILE, "stop"], 2),
        (["no" + HOSTILE], 2),
    ],
)
def test_no_command_lets_a_control_sequence_through(home, monkeypatch, capfd, arguments, code):
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (home / "rows.py").write_text(f"raise ValueError({HOSTILE!r})")
    (home / "task.py").write_text(RAISES)
    monkeypatch.chdir(home)
    ended, out, err = run_command(monkeypatch, capfd, *arguments)
    assert obeyed(out + err) == []
    assert "Traceback" not in err
    assert ended == code, err
    if "--json" in arguments:
        assert isinstance(json.loads(out), dict)


def test_json_is_json_whatever_it_holds():
    text = json_text({"text": HOSTILE, HOSTILE: [float("nan"), float("inf")]})
    assert obeyed(text) == []
    assert json.loads(text, parse_constant=pytest.fail) == {"text": HOSTILE, HOSTILE: [None, "inf"]}


@pytest.fixture
def check(home, monkeypatch, capfd):
    """`workbench check ARGUMENTS --json` in the workspace: what it prints, which adds up."""
    monkeypatch.chdir(home)

    def found_by(*arguments) -> dict:
        code, out, err = run_command(monkeypatch, capfd, "check", *map(str, arguments), "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["read"] == found["kept"] + found["left_out"]
        assert sum(reason["count"] for reason in found["reasons"]) == found["left_out"]
        return found

    return found_by


def test_check_a_file_in_gsm8ks_schema(gsm8k_file, home, check):
    found = check(gsm8k_file, "--numbers", "--policy", "tiny", "--system", "tags", "--out", "kept.jsonl")
    assert (found["read"], found["kept"]) == (298, 298)
    assert found["columns"] == {"prompt": "question", "answer": "answer"}
    assert found["lengths"]["covering"]["100%"] == found["lengths"]["longest_tokens"] > 40
    kept = [json.loads(line) for line in (home / "kept.jsonl").read_text().splitlines()]
    assert kept[0]["answer"] == "6"
    assert [message["role"] for message in kept[0]["prompt"]] == ["system", "user"]


def test_check_a_csv_with_a_byte_order_mark_and_crlf(home, check):
    rows = "".join(f'"Town {n}, which code?",T{n}\r\n' for n in range(40))
    (home / "a.csv").write_bytes(b"\xef\xbb\xbfquestion,expert_answer\r\n" + rows.encode() + b"only one field\r\n")
    found = check("a.csv")
    assert (found["read"], found["kept"]) == (41, 40)
    assert found["columns"] == {"prompt": "question", "answer": "expert_answer"}


def test_check_json_lines_whose_last_line_is_half_written(home, check):
    (home / "a.jsonl").write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "ans')
    found = check("a.jsonl")
    assert (found["read"], found["kept"]) == (2, 1)
    assert [reason["reason"] for reason in found["reasons"]] == ["last line is half-written"]


def test_check_a_folder_in_the_hubs_layout(hub_folder, check):
    found = check(hub_folder, "--split", "test")
    assert (found["read"], found["kept"]) == (18, 18)
    assert any("split 'test' of train, test" in note for note in found["notes"])


def test_check_against_the_other_split(home, gsm8k_file, check):
    lines = gsm8k_file.read_text().splitlines(keepends=True)
    check(gsm8k_file, "--out", "other.jsonl")
    (home / "some.jsonl").write_text("".join(lines[:5]) + '{"question": "new?", "answer": "#### 1"}\n')
    found = check("some.jsonl", "--other", "other.jsonl")
    assert {reason["reason"]: reason["count"] for reason in found["reasons"]} == {"prompt is also in the other split": 5}


def test_check_the_malformed_set(malformed, check):
    file, expected = malformed
    found = check(file)
    assert found["read"] == len(expected) + 101
    listed = {number: reason["reason"] for reason in found["reasons"] for number in reason["rows"]}
    # A prompt that is text becomes chat here, and so goes with the others; the first such row is kept.
    became_chat = {number for number, why in expected.items() if why == reasons.MIXED}
    assert listed.keys() <= expected.keys()
    assert expected.keys() - listed.keys() <= became_chat
    assert all(reason["do"] and reason["examples"] for reason in found["reasons"])


def test_check_never_writes_over_what_it_reads_and_leaves_no_half_file(home, gsm8k_file):
    before = gsm8k_file.read_bytes()
    for out in (gsm8k_file, home):
        result = workbench("check", str(gsm8k_file), "--out", str(out), home=home)
        assert result.returncode == 2
        assert "rule:" in result.stderr
    assert gsm8k_file.read_bytes() == before
    assert not list(home.glob(".*.part"))


def test_what_a_script_prints_does_not_spoil_the_json(home, check):
    (home / "rows.py").write_text("print('hello')\ndataset = [{'prompt': 'a', 'answer': 1}]\n")
    assert check("rows.py")["kept"] == 1


def test_check_says_where_the_kept_rows_are(home, gsm8k_file):
    said = workbench("check", str(gsm8k_file), "--out", "new/kept.jsonl", home=home).stdout
    assert said.endswith("kept rows written to new/kept.jsonl\n")


def test_check_with_the_templates_arguments(home, gsm8k_file):
    result = workbench("check", str(gsm8k_file), "--policy", "tiny", "--chat-template-kwargs", "off", home=home)
    assert result.returncode == 2
    assert "chat_template_kwargs = 'off'" in result.stderr


def test_check_for_people_and_where_nothing_can_be_kept(home):
    (home / "a.jsonl").write_text('{"prompt": "", "answer": "1"}\n')
    result = workbench("check", "a.jsonl", home=home)
    assert result.returncode == 1
    assert "1 rows read, 0 kept, 1 left out" in result.stdout
    assert "-> fill it in, or delete those rows" in result.stdout
    missing = workbench("check", "none.jsonl", home=home)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "DataError: none.jsonl: no such file" in missing.stderr


def test_doctor_reports_and_its_exit_code_says_whether_training_can_work(monkeypatch, capfd):
    code, out, err = run_command(monkeypatch, capfd, "doctor", "--json")
    found = json.loads(out)
    by_name = {finding["name"]: finding for finding in found["findings"]}
    assert code == 0, err
    assert by_name["4-bit policy"]["works"]
    assert "Linear4bit" in by_name["4-bit policy"]["detail"]
    assert found["versions"]["trl"]
    assert all(finding["remedy"] for finding in found["findings"] if not finding["works"])


def test_a_commit_that_is_not_known_is_not_called_not_installed():
    text = tables({"versions": {"torch": None, "cpu": None, "commit": None}, "findings": []})
    said = dict(re.findall(r"(?m)^(torch|cpu|commit) +(.*\S)", text))
    assert said == {"torch": "not installed", "cpu": "unknown", "commit": "unknown"}


def test_lab_without_jupyterlab_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("started"))
    with pytest.raises(WorkbenchError, match=r"pip install '\.\[lab\]'"):
        lab(8888, browser=False)


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_with_a_line(tmp_path):
    command = [sys.executable, "-m", "workbench", "demo"]
    environment = {**os.environ, "WORKBENCH_HOME": str(tmp_path)}
    # Its own process group, as a shell gives it one: Ctrl-C goes to all of it.
    demo = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, process_group=0)
    assert demo.stderr.readline().startswith("01_dataset:")
    executed = tmp_path / "runs" / "demo" / "notebooks" / "01_dataset.ipynb"
    while not executed.is_file():
        time.sleep(0.1)
    os.killpg(demo.pid, signal.SIGINT)
    rest = demo.communicate(timeout=300)[1]
    ended = "aborted: what was executed stays under runs/; a run that had begun goes on with `workbench continue latest`"
    assert (demo.returncode, rest.splitlines()[-1]) == (130, ended)
    assert "nbclient" not in rest  # a kernel that is ended while it imports may still say so
    assert executed.is_file()


LIBRARIES = re.compile(r"site-packages|Warning|WARNING|^W\d{4} |Loading weights|Unsloth: |Traceback|\d+%\||it/s|━", re.M)


def is_clean(text: str) -> bool:
    """Nothing that draws, no bar, no warning of a library: what one would keep in a file."""
    return not obeyed(text) and not LIBRARIES.search(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rows.jsonl"),
        ("probe", "arithmetic"),
        ("explain", "reward_std"),
        ("lesson",),
        ("watch",),
        ("report",),
        ("replay", "latest", "--task", "arithmetic"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_goes_to_a_file_is_clean(home, arguments):
    (home / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(9)))
    run = Running("r", steps=2)
    run.step()
    run.step()
    run.finish()
    result = workbench_process(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert is_clean(result.stdout + result.stderr), result.stdout + result.stderr


@pytest.mark.slow
def test_what_the_heavy_commands_write_to_a_file_is_clean(tmp_path):
    ends = {}
    for arguments in (
        ("plan", "cpu"),
        ("train", "cpu", "--steps", "2", "--run-name", "r"),
        ("eval", "r", "--held-out", "4", "--samples", "2"),
        ("export", "r"),
        ("verify", "r"),
        ("doctor",),
    ):
        result = workbench_process(*arguments, home=tmp_path)
        ends[arguments[0]] = result.returncode
        assert is_clean(result.stdout + result.stderr), result.stdout + result.stderr
    assert {name for name, code in ends.items() if code} <= {"eval"}, "which found no gain"


@pytest.mark.parametrize(
    ("called", "uv", "on_path", "typed"),
    [
        ("/env/bin/workbench", True, True, "uv run workbench"),  # uv puts it on PATH for its child alone
        ("/env/bin/workbench", False, True, "workbench"),
        ("/env/bin/workbench", False, False, "/env/bin/workbench"),
        ("/env/bin/pytest", False, False, "workbench"),
    ],
)
def test_a_hint_is_a_command_that_this_terminal_finds(called, uv, on_path, typed, monkeypatch):
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: called if on_path else None)
    if uv:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert as_typed("run `workbench eval a`, the workbench itself is") == f"run `{typed} eval a`, the workbench itself is"
    assert as_typed("- train further?\n  workbench eval a") == f"- train further?\n  {typed} eval a"
    assert as_typed("workbench words are no command") == "workbench words are no command"


def test_the_disk_is_that_of_a_folder_that_the_first_run_will_make(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "not" / "yet"))
    free_gb = shutil.disk_usage(tmp_path).free / 2**30
    assert abs(float(PROBES["disk"]().detail.split()[0]) - free_gb) <= 1
    assert not (tmp_path / "not").exists()
