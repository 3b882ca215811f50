"""Shared fixtures. Nothing here mocks a library: the embedded policy is small enough to be used for real."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]

GSM8K = [
    {
        "question": f"Mia has {n} boxes with 4 pens each and gives 2 pens away. How many pens has she left?",
        "answer": f"{n} boxes hold {n} * 4 = <<{n}*4={4 * n}>>{4 * n} pens.\n{4 * n} - 2 = {4 * n - 2}\n#### {4 * n - 2:,}",
    }
    for n in range(2, 300)
]

# A shared machine stops now and then; how long things take has tests of its own.
# CI tries the same examples every time: what it says is then of the change that it is asked about.
hypothesis.settings.register_profile("patient", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("patient")

# Two test processes share two cores; with two threads each in every one of them, torch waits for itself most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)  # `uv run pytest`: commands would be written `uv run workbench`

# A kernel or subprocess that a test starts must not go looking for a hub that is not there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Where a test imports TRL itself: else red lines of torch on its own Enums are the first that whoever runs the tests reads.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

# What a test puts in a library's place is not what that library says to anybody else.
os.environ.setdefault("WORKBENCH_ASK_LIBRARIES", "1")


# Kernels, browsers, commands and real training take long: begun last, they would leave one of two processes alone.
LONG = (
    "emulated/",
    "hosted/",
    "notebooks/",
    "browser/",
    "benchmarks/",
    "train/test_attach",
    "train/test_continue",
    "instruments/cpu/test_generation",
    "train/test_health.",
    "train/test_nothing_lost",
    "train/test_pasting",
    "train/test_presets",
    "train/test_steering",
    "train/test_trainer.",
    "commands/test_cli",
    "commands/test_plan_command",
)


# -- a module of tests loads nothing while it is imported ----------------------------------------------------------------
# A machine without our caches would fail in its first minute, and whoever asks for one test would wait for all.
LOADED: list[str] = []
importing = False


def _caches() -> tuple[str, ...]:
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("HF_HOME") or f"{shared}/huggingface", f"{shared}/grpo-workbench"


def _heard(event: str, args: tuple) -> None:
    """What Python reports to its audit hooks."""
    if not importing:
        return
    if event in ("socket.connect", "socket.getaddrinfo"):
        LOADED.append(f"{event} {args[-1] if event == 'socket.connect' else args[0]}")
    elif event == "subprocess.Popen" and sys.executable in (args[0], *args[1][:1]):
        LOADED.append(f"starts Python: {args[1]!s:.80}")
    elif event == "open" and isinstance(args[0], str | bytes) and args[1]:
        file = os.fsdecode(args[0])
        if Path(file).name in ("config.json", "tokenizer_config.json") or file.endswith((".safetensors", ".gguf")):
            LOADED.append(f"opens a model's {file}")
        elif file.startswith(_caches()) and not os.path.isdir(file):  # or a file without a name there, of a library that looks
            LOADED.append(f"opens {file} of a cache")


sys.addaudithook(_heard)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    global importing
    LOADED.clear()
    importing = isinstance(collector, pytest.Module)
    try:
        report = yield
    finally:
        importing = False
    if LOADED:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} loads while it is imported; do it in a test or a fixture: " + "; ".join(LOADED[:3])
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-texts", action="store_true", help="write tests/texts.txt anew; then review its diff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped without a GPU; with WORKBENCH_GPU=1 they run, and so fail, whatever the machine is."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: not os.path.relpath(item.path, tests).startswith(LONG))
    if os.environ.get("WORKBENCH_GPU") == "1" or not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """What a function is given by default suits people, 5 or 10 s; a machine that stands still for a while is no finding."""
    from workbench.audit import examination
    from workbench.rewards import compare
    from workbench.views import bench

    compare.DEADLINE_S = bench._DEADLINE_S = 120.0
    compare.same_answer.__defaults__ = compare.verdicts.__defaults__ = (120.0,)
    examination.audit_rewards.__kwdefaults__["deadline_s"] = 120.0


# Here reward functions travel as those of an installed module do: by their names.
BY_REFERENCE = ("test_worker.py", "test_suite.py")
# Reward functions that several test files share.
HELPERS = ("running", "ill_runs", "planted", "samples")


@pytest.fixture(scope="module", autouse=True)
def by_value(request: pytest.FixtureRequest):
    """Elsewhere as those of a notebook's cells: a worker need not import the test file, and with it all that is tested.

    Each start of a worker would take 1 s for that, and 10 s where the file imports torch and trl.
    """
    import cloudpickle

    helpers = [sys.modules[name] for name in HELPERS if name in sys.modules]
    modules = [] if request.path.name in BY_REFERENCE else [request.module, *helpers]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A workspace of its own for everything that is written under relative paths, and somebody who stands in it."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_policy():
    """The embedded policy in 4 bits. Shared: a test that trains it loads its own."""
    from workbench.training.policy import load_policy

    return load_policy("tiny")


@pytest.fixture
def gsm8k_file(home) -> Path:
    """298 rows in GSM8K's schema, as JSON lines."""
    file = home / "gsm8k.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    return file


@pytest.fixture(scope="session")
def hub_folder(tmp_path_factory) -> Path:
    """A folder as the hub keeps a dataset: Parquet by subset and split, and a README that says which is which."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("hub") / "gsm8k"
    readme = ["---", "configs:"]
    for subset in ("main", "socratic"):
        (folder / subset).mkdir(parents=True)
        readme += [f"- config_name: {subset}", "  data_files:"]
        for split, rows in (("train", GSM8K[:280]), ("test", GSM8K[280:])):
            pq.write_table(pa.Table.from_pylist(rows), folder / subset / f"{split}-00000-of-00001.parquet")
            readme += [f"  - split: {split}", f"    path: {subset}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*readme, "---", ""]))
    return folder


@pytest.fixture
def malformed(home) -> tuple[Path, dict[int, str]]:
    """(a file of 1,000 malformed rows of every kind among 101 good ones, the reason of each bad one by its number)."""
    import malformed

    file = home / "malformed.jsonl"
    return file, malformed.write(file)
