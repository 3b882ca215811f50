"""What becomes of a run whose environment fails, hangs, ends the process, answers with what is no
text, never ends or shares its state: the workbench's, and stock TRL's.

    uv run python benchmarks/bad_environments.py [--cases reset_hangs tool_list] [--patience 45]

The environments are those of `tests/bad_games.py`. Each is good in the first step and bad on one
prompt of the second, but for those that cannot even be made. The policy is the embedded one with a
template that has tools; what it writes is a script, so that it calls the tool. Every run is a fork
of one process. The workbench gives a tool, `reset` and `get_reward` half a second here (60 s by
default); a run that is not over after `--patience` seconds hangs.

    refused   before anything is loaded, with the reason
    stopped   the error names the prompt; what was recorded stays, and with the environment mended
    the run goes on from its checkpoint to its end
    recorded  the call's error or result stands in the record, with prompt and turn; the run goes on
    told      an event of the run, and a line
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

import measuring
from measuring import Line

sys.path.insert(0, str(measuring.HERE.parent / "tests"))


def forked(work: Callable[[], Any], folder: Path, patience: float) -> Any:
    """What `work` returns in a fork of this process; None if it is not over after so many
    seconds.
    """
    folder.mkdir()
    found = folder / "found.json"
    if (child := os.fork()) == 0:
        try:
            log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            found.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    until = time.monotonic() + patience
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.05)
    if not found.is_file():
        raise RuntimeError((folder / "log.txt").read_text()[-3000:])
    return json.loads(found.read_text())


def by_trl(case: Any, policy: str, folder: Path) -> str:
    """The same run with trl.GRPOTrainer alone: how it ends, in words."""
    import bad_games
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    grpo = bad_games.recipe_of(policy).grpo
    config = GRPOConfig(output_dir=str(folder / "out"), report_to="none", **grpo)
    rows = bad_games.task_of().rows
    try:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(policy),
            processing_class=AutoTokenizer.from_pretrained(policy),
            args=config,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=[bad_games.no_reward],
            environment_factory=case.environment,
            tools=list(case.tools),
        )
        bad_games.calls_by_script(trainer, case.ever)
        bad_games.Seats.free = False
        trainer.train()
    except BaseException as error:
        return f"ends: {type(error).__name__}: {error}".splitlines()[0][:90]
    return "finishes"


def measure(name: str, policy: str, home: Path, patience: float) -> dict[str, Any]:
    """One environment with both: what became of it, and whether it is as `bad_games` says."""
    import bad_games

    case = bad_games.CASES[name]
    runs = home / name
    found = forked(lambda: bad_games.outcome_of(case, policy, runs / "runs"), runs, patience)
    theirs = forked(lambda: by_trl(case, policy, home), home / f"{name}-trl", patience)
    how, said, steps, after = found or ("hangs", [], [], "")
    shown = next((text for text in said if case.said in text), "")
    lost = how == bad_games.STOPPED and (steps, after) not in (([1], "finished"), ([], "not begun"))
    return {
        "case": name, "what": case.what, "how": how, "said": shown, "steps": steps, "after": after,
        "held": how == case.outcome and bool(shown) and not lost, "trl": theirs or "hangs",
    }  # fmt: skip


def main() -> int:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--patience", type=float, default=45.0, metavar="S")
    asked = measuring.parse(parser, cases=["reset_bytes", "tool_hangs", "any_arguments"])
    stamped, found = measuring.stamp(), []
    with measuring.empty_home() as home:
        from workbench.training.policy import trainer_classes

        trainer_classes()  # unsloth comes first
        import bad_games
        from small_models import make_speaking

        policy = make_speaking(home / "policy")
        for name in asked.cases or bad_games.CASES:
            one = measure(name, policy, home, asked.patience)
            found.append(one)
            measuring.say(f"{name}: {one['how']}, held: {one['held']}; TRL {one['trl']}")
    rows = [
        [one["what"], one["how"], one["said"].removeprefix("r: ")[:130], one["trl"]]
        for one in found
    ]
    held = sum(one["held"] for one in found)
    quiet = sum(one["trl"] in ("hangs", "finishes") for one in found)
    line = Line(
        "bad environments: named, and nothing lost",
        f"{held} of {len(found)}",
        f"TRL alone: {sum(one['trl'] == 'hangs' for one in found)} hang,"
        f" {len(found) - quiet} end with the raw error",
        "none: no chance in it",
    )
    header = ["the environment", "the run", "what is said", "TRL alone"]
    measuring.save("bad_environments", asked, stamped, [line], (header, rows), {"runs": found})
    return 0 if held == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
