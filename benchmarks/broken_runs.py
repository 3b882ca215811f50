"""Whether each run of the gallery is broken, and repaired by its solution: by seed, with both
backends.

    uv run python benchmarks/broken_runs.py [--seeds 3] [--backends unsloth transformers]
    uv run python benchmarks/broken_runs.py --cases run_15 --keep results/broken_runs.json

The cases are those of `notebooks/teaching/broken`, the solutions those of the notebook
`broken_runs`. What is measured of a case, and the threshold, stand in `cases.yaml`: broken is below
it, repaired is not.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measuring
from measuring import Line

sys.path.insert(0, str(measuring.HERE.parent / "tests"))


def measure(name: str, backend: str, seed: int) -> dict[str, Any]:
    """One case, made and repaired: what was measured, and the seconds that both took."""
    from gallery_solutions import repair

    from workbench.teaching import gallery

    case, started = gallery.Case(name, backend, seed), time.perf_counter()
    case.make()
    made = time.perf_counter()
    with contextlib.suppress(gallery.NotYet):
        repair(case)
    return {
        "case": name, "illness": case.illness, "backend": backend, "seed": seed,
        "threshold": case.least,
        "broken": case.was, "repaired": case.reached, "held": case.was < case.least <= case.reached,
        "make_s": made - started, "repair_s": time.perf_counter() - made,
    }  # fmt: skip


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["unsloth", "transformers"])
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument(
        "--keep", type=Path, nargs="+", default=[], help="results whose other cases are kept"
    )
    asked = measuring.parse(parser, seeds=1, backends=["unsloth"], cases=["run_01"])
    stamped = measuring.stamp()
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in asked.keep]
    kept_runs = {  # of the same run the last file's; each with the commit of its own
        (one["case"], one["backend"], one["seed"]): {"commit": of["versions"]["commit"]} | one
        for of in kept
        for one in of["runs"]
    }
    with measuring.empty_home():
        from workbench.teaching import gallery

        commit, cases = stamped["versions"]["commit"], asked.cases or gallery.CASES
        found = [one for one in kept_runs.values() if not asked.seeds or one["case"] not in cases]
        for backend in asked.backends:
            for seed in range(asked.seeds):
                for name in cases:
                    with contextlib.redirect_stdout(io.StringIO()):
                        found.append(measure(name, backend, seed) | {"commit": commit})
                    one = found[-1]
                    measuring.say(
                        f"{backend}, seed {seed}, {name} ({one['illness']}): {one['broken']:.0%} ->"
                        f" {one['repaired']:.0%}, threshold {one['threshold']:.0%}:"
                        f" {'held' if one['held'] else 'NOT HELD'}"
                    )
    found.sort(key=lambda one: one["case"])
    rows = []
    for name in dict.fromkeys(one["case"] for one in found):
        own = [one for one in found if one["case"] == name]
        ranges = [
            f"{min(of):.0%} to {max(of):.0%}"
            for of in ([one[key] for one in own] for key in ("broken", "repaired"))
        ]
        seconds = sum(one["make_s"] + one["repair_s"] for one in own) / len(own)
        held = f"{sum(one['held'] for one in own)} of {len(own)}"
        rows.append(
            [
                name,
                own[0]["illness"],
                ranges[0],
                f"{own[0]['threshold']:.0%}",
                ranges[1],
                held,
                f"{seconds:.0f}",
            ]
        )
    header = ["case", "illness", "broken", "threshold", "repaired", "held", "seconds"]
    line = Line(
        "gallery of broken runs: broken at first, repaired after",
        str(sum(one["held"] for one in found)),
        f"{len(found)} runs ({len(rows)} cases, {len({one['seed'] for one in found})} seeds, "
        f"{' and '.join(dict.fromkeys(one['backend'] for one in found))})", "none",
    )  # fmt: skip
    commits = Counter(one["commit"] for one in found)
    notes = [f"Measured at: {', '.join(f'{n} runs {of}' for of, n in commits.items())}."]
    del asked.keep
    measuring.save("broken_runs", asked, stamped, [line], (header, rows), {"runs": found}, notes)


if __name__ == "__main__":
    main()
