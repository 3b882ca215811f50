"""Structured output: put what a sentence says into JSON that keeps to a schema. The sentences are
made here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from workbench.data.sources import Source
from workbench.kinds import Fields
from workbench.rewards.verifiers import json_right_reward, json_schema_reward, json_values_reward
from workbench.task import Row, Task
from workbench.tasks import task_of

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

_FIRST = [
    "Ada",
    "Ben",
    "Chen",
    "Dora",
    "Emil",
    "Farah",
    "Goran",
    "Hana",
    "Ivo",
    "Jun",
    "Kofi",
    "Lea",
    "Nia",
    "Omar",
    "Pia",
]
_LAST = [
    "Abbas",
    "Berg",
    "Costa",
    "Duarte",
    "Eriksen",
    "Fofana",
    "Gupta",
    "Haas",
    "Ito",
    "Kim",
    "Lopez",
    "Marek",
    "Novak",
]
_CITIES = [
    "Accra",
    "Bergen",
    "Cusco",
    "Dakar",
    "Essen",
    "Faro",
    "Graz",
    "Hanoi",
    "Izmir",
    "Kyoto",
    "Lima",
    "Malmo",
    "Nairobi",
]
_LANGUAGES = [
    "Arabic",
    "Czech",
    "Dutch",
    "English",
    "French",
    "German",
    "Hindi",
    "Korean",
    "Polish",
    "Spanish",
    "Twi",
]
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
            person = {
                "name": f"{random_source.choice(_FIRST)} {random_source.choice(_LAST)}",
                "age": random_source.randint(18, 90),
                "city": random_source.choice(_CITIES),
                "languages": random_source.sample(_LANGUAGES, random_source.randint(1, 3)),
            }
            languages = person["languages"]
            spoken = (
                languages[0]
                if len(languages) == 1
                else f"{', '.join(languages[:-1])} and {languages[-1]}"
            )
            text = random_source.choice(_FORMS).format(
                **{**person, "languages": spoken, "first": person["name"].split()[0]}
            )
            if text not in seen:
                seen.add(text)
                yield {"question": text, "answer": json.dumps(person), "schema": schema}

    return Source("json", rows)


def task(questions: int = QUESTIONS, seed: int = 0) -> Task:
    """JSON to a schema, one worked example as a turn of the chat."""
    functions, examples = (
        (json_schema_reward, json_values_reward, json_right_reward),
        {
            "examples": [EXAMPLE],
            "as_turns": True,
        },
    )
    named: Fields = {
        "right_by": "json_right_reward",
        "format_by": "json_schema_reward",
        "cases": "cases_json.jsonl",
    }
    return task_of("json", source(questions, seed), functions, **named, system=SYSTEM, **examples)
