"""Is one changed bit of an artefact seen, wherever it is?

    uv run python benchmarks/verifying.py [--flips 1000]

A short run is trained and exported as an adapter. One bit of the artefact is changed at a time, at
random places, and `verify` is to name the file.
"""

from __future__ import annotations

import random
from pathlib import Path

import measuring
from measuring import Line

RECIPE = {
    "run_name": "run", "policy": {"backend": "transformers"},
    "grpo": {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8,
    "max_completion_length": 48},
}  # fmt: skip


def exported() -> Path:
    from workbench.exporting.making import export
    from workbench.recipe import Recipe
    from workbench.training.trainer import train

    return export(train(Recipe.of(RECIPE)), ["adapter"])["adapter"].path


def flipped(artefact: Path, flips: int) -> int:
    """Of so many changes of one bit somewhere in an artefact, those that are seen."""
    from workbench.base.errors import ExportError
    from workbench.exporting.passport import verify

    chance, files, seen = (
        random.Random(0),
        sorted(file for file in artefact.rglob("*") if file.is_file()),
        0,
    )
    for number in range(flips):
        file = files[number % len(files)]  # as often in a small file as in a large one
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        file.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        )
        try:
            seen += any(
                line.startswith(f"{file.name} was changed") for line in verify(artefact)[0].differs
            )
        except ExportError as error:
            seen += file.name in error.value
        file.write_bytes(whole)
    return seen


def main() -> None:
    parser = measuring.arguments(__doc__)
    parser.add_argument("--flips", type=int, default=1000, help="changes of one bit")
    asked = measuring.parse(parser, flips=20)
    stamped = measuring.stamp()
    with measuring.empty_home():
        artefact = exported()
        files = sorted(file.name for file in artefact.rglob("*") if file.is_file())
        seen = flipped(artefact, asked.flips)
    lines = [
        Line(
            "one bit of an artefact changed",
            f"{seen} of {asked.flips} seen and named",
            "as exported",
            "none",
        )
    ]
    rows = [
        ["files of the artefact", ", ".join(files)],
        ["changes", asked.flips],
        ["seen and named", seen],
    ]
    measuring.save(
        "verifying",
        asked,
        stamped,
        lines,
        (["what", "figure"], rows),
        {"flips": asked.flips, "seen": seen},
    )


if __name__ == "__main__":
    main()
