"""README.md and docs/ are true of the repository: links, commands, recipes, Python, and what commands are shown to print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from commanding import workbench

import workbench as wb
from workbench.commands.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "notebooks/teaching/README.md"))]
PAGES += sorted(DOCS.glob("*.md"))
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = typer.main.get_command(app).commands
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
every_page = pytest.mark.parametrize("page", TEXTS)


def links(text: str) -> list[str]:
    """Where a page's relative links and pictures lead."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)) if "://" not in target]


def blocks(page: str, language: str) -> list[str]:
    return [code for each, code in FENCE.findall(TEXTS[page]) if each == language]


def spans(page: str) -> list[str]:
    """Code within sentences, each on one line."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", TEXTS[page]))]


def sections(text: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# --- links ------------------------------------------------------------------------------------------------------------


@every_page
def test_every_link_and_picture_exists(page):
    for target in links(TEXTS[page]):
        name, _, section = target.partition("#")
        file = ((ROOT / page).parent / name if name else ROOT / page).resolve()
        assert file.exists(), target
        assert not section or section in sections(file.read_text(encoding="utf-8")), target


def test_the_tree_names_what_is_there():
    [tree] = [block for block in blocks("docs/architecture.md", "") if block.startswith("notebooks/")]
    for folder in sorted(path for path in (ROOT / "workbench").iterdir() if path.is_dir() and path.name[0] != "_"):
        assert f"{folder.name}/" in tree


def test_the_api_page_has_every_public_name_in_order():
    below = [f"{module.__name__.rpartition('.')[2]}.{name}" for module in (wb.rewards, wb.inspection) for name in module.__all__]
    assert re.findall(r"`wb\.([\w.]+)`[,\n]", TEXTS["docs/api.md"].partition("\n## ")[2]) == [*wb.FACE, *below]


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_on(page: str) -> list[tuple[str, list[str]]]:
    """(The command, its arguments) wherever a page has one in its code."""
    lines = [line.partition("  #")[0] for _, code in FENCE.findall(TEXTS[page]) for line in code.splitlines()]
    named = [re.match(r"(?:\$ )?(?:uv run .*)?workbench ([a-z]\w*)(.*)", line) for line in (*lines, *spans(page))]
    return [(match[1], shlex.split(match[2])) for match in named if match]


@every_page
def test_every_command_is_one_that_can_be_typed(page):
    for command, arguments in commands_on(page):
        assert command in COMMANDS
        if arguments and "--help" not in arguments:  # a name alone stands for the command
            COMMANDS[command].make_context(command, arguments)


def test_every_command_is_on_a_page():
    shown = {command for page in TEXTS for command, _ in commands_on(page)}
    assert set(COMMANDS) - shown == set()


SHOWN = [
    (page, *block.split("\n", 1)) for page in TEXTS for block in blocks(page, "") if re.match(r"\$ (uv run )?workbench ", block)
]


def brought(kind: str, begins: str) -> str:
    """The one block of the docs that begins so, as a file."""
    [block] = [block for page in TEXTS for block in blocks(page, kind) if block.startswith(begins)]
    return block


@pytest.mark.parametrize(
    ("page", "command", "output"),
    [
        pytest.param(*shown, id=f"{shown[0]}: {shown[1]}", marks=[pytest.mark.slow] if " train " in shown[1] else [])
        for shown in SHOWN
    ],
)
def test_a_command_prints_what_is_shown(page, command, output, home):
    """`...` on a page leaves something out. What a run measures, and seconds, are another computer's."""
    (home / "tagged.py").write_text(brought("python", '"""Two reward functions that look right'))
    (home / "totals.py").write_text(brought("python", '"""Sums whose answer is a JSON object'))
    (home / "judged.py").write_text(brought("python", '"""A judge that can add'))
    (home / "train.py").write_text(brought("python", "from trl import GRPOConfig"))
    (home / "sums.jsonl").write_text(brought("json", '{"question": "What is 1 + 1?"'))
    arguments = shlex.split(command.removeprefix("$ ").removeprefix("uv run ").removeprefix("workbench "))
    done = workbench(*(str(ROOT / each) if each.endswith(".yaml") else each for each in arguments), home=home)
    printed = same(done.stdout + done.stderr, arguments[0])
    at = 0
    for piece in output.split("..."):
        if wanted := same(piece, arguments[0]):
            assert wanted in printed[at:]
            at = printed.index(wanted, at) + len(wanted)


def same(text: str, command: str) -> str:
    text = " ".join(re.sub(r"\d+\.\d s\b", "# s", text).split())
    return re.sub(r"\d+", "#", text) if command == "train" else text


# --- recipes ----------------------------------------------------------------------------------------------------------

TASKS = [(page, code) for page in TEXTS for code in blocks(page, "python") if "wb.Task(" in code and page != "docs/turns.md"]
RECIPES = [(page, code) for page in TEXTS for code in blocks(page, "yaml")]


@pytest.mark.parametrize(("page", "code"), RECIPES, ids=[page for page, _ in RECIPES])
def test_every_recipe_is_one_and_is_planned(page, code, home):
    (home / "sums.py").write_text(next(task for where, task in TASKS if where == "docs/tasks.md"))
    recipe = wb.Recipe.of(yaml.safe_load(code))
    if not recipe.task.startswith("reasoning_gym/"):  # an extra, whose level is found by sampling
        assert wb.plan(recipe).recipe.run_name == recipe.run_name


def test_the_page_of_all_keys_has_them_all_and_their_defaults():
    every, parts = (yaml.safe_load(code) for code in blocks("docs/recipe.md", "yaml"))
    assert wb.Recipe.of(every) == wb.Recipe()
    recipe = wb.Recipe.of(parts)
    [weight], [stage] = recipe.adaptive_weights.values(), recipe.stages
    written = {
        "": (every, wb.Recipe()),
        "stages": (parts["stages"][0], stage),
        "warm_start": (parts["warm_start"], recipe.warm_start),
    }
    written |= {name: (every[name], getattr(wb.Recipe(), name)) for name in ("policy", "lora", "rewards")}
    written["adaptive_weights"] = (parts["adaptive_weights"]["strict_format_reward"], weight)
    for name, (keys, part) in written.items():
        assert keys.keys() == type(part).model_fields.keys(), name
    assert weight == type(weight)()
    assert recipe.warm_start == type(recipe.warm_start)(samples=32)


@every_page
def test_every_part_of_a_recipe_in_a_sentence_is_one(page):
    for span in spans(page):
        if (match := re.match(r"(\w+): \S", span)) and match[1] in wb.Recipe.model_fields:
            wb.Recipe.of({"run_name": "a", "task": "arithmetic", **yaml.safe_load(span)})


# --- Python -----------------------------------------------------------------------------------------------------------


@every_page
def test_python_compiles_and_names_what_exists(page):
    for code in blocks(page, "python"):
        compile(code, page, "exec")
    for name, part in re.findall(r"\bwb\.([a-z]\w*)(?:\.(\w+))?", TEXTS[page]):
        assert hasattr(wb, name)
        if name in ("rewards", "inspection") and part:
            assert hasattr(getattr(wb, name), part)


@pytest.mark.parametrize(("page", "code"), TASKS, ids=[page for page, _ in TASKS])
def test_a_task_file_is_whole(page, code, home):
    (home / "shown.py").write_text(code)
    task = wb.load_task("shown.py")
    row = task.rows[0]
    if task.ideal:  # the page says that these answers are to be numbers
        row = {**row, "answer": int(row["answer"])}
    ideal = task.ideal or "<answer>{answer}</answer>".format_map
    right, wrong = wb.score(task, row, [ideal(row), "I do not know."]).totals
    assert right > wrong


ASKED = [(page, code) for page, code in TASKS if 'wb.load_task("arithmetic")' in code]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), ASKED, ids=[page for page, _ in ASKED])
def test_the_embedded_policy_learns_a_task_file_by_the_page_s_recipe(page, code, home):
    (home / "sums.py").write_text(code)
    [asked] = [recipe for where, recipe in RECIPES if where == "docs/tasks.md" and "sums.py" in recipe]
    recipe = yaml.safe_load(asked)
    recipe["grpo"]["max_steps"] = recipe["eval_every"]
    recipe["policy"]["load_in_4bit"] = False  # which is slower
    run = wb.train(recipe)
    assert run.result()["held_out"]["last"]["gain_low"] > 0
