"""Structured output: put what a sentence says into JSON that keeps to a schema. The sentences are
made here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from workbench.base.kinds import Fields
from workbench.data.sources import Source
from workbench.rewards.verifiers import json_right_reward, json_schema_reward, json_values_reward
from workbench.task import Row, Task
from workbench.tasks.checked import task_of

QUESTIONS = 1200
SCHEMA: Fields = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "city": {"type": "string"},
        "languages": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["name", "age", "city", "languages"],
    "additionalProperties": False,
}
SYSTEM = f"""Write what the text says as one JSON object and nothing else. It must keep to this JSON Schema:
{json.dumps(SCHEMA)}
Languages stand in the order of the text."""  # noqa: E501
EXAMPLE = (
    "Mara Lind is 41 and lives in Oslo. She speaks Norwegian and German.",
    json.dumps(
        {"name": "Mara Lind", "age": 41, "city": "Oslo", "languages": ["Norwegian", "German"]}
    ),
)

_NAMES = json.loads(Path(__file__).with_name("structured_names.json").read_bytes())
_FORMS = (
    "{name} is {age} and lives in {city}. {first} speaks {languages}.",
    "In {city} lives {name}, aged {age}, who speaks {languages}.",
    "{first} speaks {languages}; the full name is {name}, the age {age}, the home {city}.",
    "{age} years old, at home in {city}, fluent in {languages}: that is {name}.",
)


def source(limit: int | None = None, seed: int = 0) -> Source:
    """`limit` sentences: columns `question`, `answer` (the right object, as JSON text) and `schema`
    (likewise).
    """

    def rows() -> Iterator[Row]:
        random_source, schema, seen = random.Random(seed), json.dumps(SCHEMA), set()
        while len(seen) < (limit or QUESTIONS):
            first, last = (random_source.choice(_NAMES[kind]) for kind in ("first", "last"))
            person = {
                "name": f"{first} {last}",
                "age": random_source.randint(18, 90),
                "city": random_source.choice(_NAMES["cities"]),
                "languages": random_source.sample(_NAMES["languages"], random_source.randint(1, 3)),
            }
            *others, one = person["languages"]
            spoken = f"{', '.join(others)} and {one}" if others else one
            words = person | {"languages": spoken, "first": first}
            text = random_source.choice(_FORMS).format(**words)
            if text not in seen:
                seen.add(text)
                yield {"question": text, "answer": json.dumps(person), "schema": schema}

    return Source("json", rows)


def task(questions: int = QUESTIONS, seed: int = 0) -> Task:
    """JSON to a schema, one worked example as a turn of the chat."""
    return task_of(
        "json",
        source(questions, seed),
        (json_schema_reward, json_values_reward, json_right_reward),
        right_by="json_right_reward",
        format_by="json_schema_reward",
        cases="cases_json.jsonl",
        system=SYSTEM,
        examples=[EXAMPLE],
        as_turns=True,
    )
