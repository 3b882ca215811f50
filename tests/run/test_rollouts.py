"""The rollout record: what is written comes back, in parts that a torn one cannot spoil."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.run import rollouts
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import batch_and_place, columns_of, query, read_batches, write_part

ROW = {
    "stage": "1",
    "group": 0,
    "prompt_id": "p",
    "prompt": "What?",
    "completion": "42",
    "length_tokens": 2,
    "finish_reason": "stop",
    "columns": '{"answer": "42"}',
    "total": 2.0,
    "group_mean": 1.0,
    "group_std": 1.0,
    "advantage": 1.0,
    "right": True,
    "reward_hash": "h",
    "score.a_reward": 2.0,
    "weight.a_reward": 1.0,
    "error.a_reward": None,
}


def rows(step, count=2, **changes):
    return [{**ROW, "step": step, "generation": index, **changes} for index in range(count)]


def write(folder, step, rows):
    return write_part(folder, step, {key: [row[key] for row in rows] for key in rows[0]}, ["a_reward"])


def test_round_trip_in_order(tmp_path):
    write(tmp_path, 2, rows(2))
    write(tmp_path, 1, rows(1))
    frame = query(tmp_path)
    assert frame["step"].tolist() == [1, 1, 2, 2]
    assert frame.iloc[0].to_dict() == {**ROW, "step": 1, "generation": 0}


def test_two_batches_of_one_step_are_two_parts(tmp_path):
    names = [write(tmp_path, 1, rows(1)).name for _ in range(2)]
    assert names == ["step-0000001-00.parquet", "step-0000001-01.parquet"]
    assert len(query(tmp_path)) == 4


def test_a_question_about_one_step_opens_the_parts_of_that_step_alone(tmp_path):
    write(tmp_path, 1, rows(1))
    write(tmp_path, 1, rows(1))
    write(tmp_path, 12, rows(12))
    (tmp_path / "step-0000011-00.parquet").write_bytes(b"no Parquet")
    assert query(tmp_path, step=1)["step"].tolist() == [1] * 4
    assert query(tmp_path, "select count(*) from rollouts", step=12).iloc[0, 0] == 2
    (tmp_path / "step-0000011-00.parquet").unlink()
    assert len(query(tmp_path, "select * from rollouts where step = 5", step=5)) == 0


def test_a_part_in_the_making_is_not_read(tmp_path):
    write(tmp_path, 1, rows(1))
    (tmp_path / ".step-0000002-00.parquet.part").write_bytes(b"PAR1 torn")
    assert len(query(tmp_path)) == 2


def test_any_text_survives(tmp_path):
    texts = ["", "a\x00b", "é漢🙂", "<script>", "a" * 100_000]
    write(tmp_path, 1, [{**rows(1, 1)[0], "completion": text} for text in texts])
    assert query(tmp_path, "select completion from rollouts")["completion"].tolist() == texts


def test_a_lone_surrogate_is_escaped_not_fatal(tmp_path):
    write(tmp_path, 1, rows(1, 1, completion="a\ud800b"))
    assert query(tmp_path)["completion"].tolist() == ["a\\ud800b"]


def test_a_score_that_does_not_apply_is_null(tmp_path):
    write(tmp_path, 1, rows(1, 1, **{"score.a_reward": None}))
    assert query(tmp_path, 'select count("score.a_reward") as n from rollouts')["n"].tolist() == [0]


def test_reading_nothing_says_so(tmp_path):
    with pytest.raises(RunError, match="no rollouts"):
        query(tmp_path)


def test_a_folder_with_a_quote_in_its_name(tmp_path):
    folder = tmp_path / "it's"
    write(folder, 1, rows(1))
    assert len(query(folder)) == 2


# --- batches, written and read back ------------------------------------------------------------------------------


CHAT = [{"role": "user", "content": "What is 2 + 2? é\n"}]


def batch(step: int, spread: float = 1.0) -> ScoredBatch:
    """Two groups of two, with everything that a batch can have; the second group's totals differ by `spread`."""
    prompts = [CHAT, CHAT, '["text that is JSON"]', '["text that is JSON"]']
    return batch_of(
        ["a_reward", "b_reward"], [1.0, 0.5], [[1.0, np.nan], [1.5, 2.0], [0.0, 0.0], [spread, 0.0]],
        ["4", "", "<b>", "4" * 9], [True, False, False, True], 2,
        step=step, stage="late", prompts=prompts, lengths=np.array([1, 0, 3, 9]), format_by="b_reward", reward_hash="h",
        columns={"answer": ["4", "4", None, None], "more": [[1, 2], [1, 2], {"a": 1.5}, {"a": 1.5}], "prompt_id": list("ppqq")},
        finished=np.array([True, True, False, True]), errors={"b_reward": {0: "raised ValueError"}},
    )  # fmt: skip


@pytest.fixture
def run(home):
    settings = {"num_generations": 2, "scale_rewards": "group"}
    return RunDirectory.create("r", Recipe(), {"settings": {"in_force": settings}, "task": {"format_by": "b_reward"}})


def group(*asked) -> ScoredBatch:
    found, place = batch_and_place(*asked)
    return found.group(place)


def leave(run, *batches):
    for own in batches:
        write_part(run.rollouts, own.step, columns_of(own), own.names)


def test_a_batch_that_is_read_is_the_one_that_was_written(run):
    written = batch(3)
    leave(run, written)
    [read] = read_batches(run)
    for field in dataclasses.fields(ScoredBatch):
        was, now = (getattr(own, field.name) for own in (written, read))
        if field.name == "groups":
            for one, other in zip(was, now, strict=True):
                np.testing.assert_array_equal(one, other)
        elif isinstance(was, np.ndarray):
            np.testing.assert_array_equal(was, now, err_msg=field.name)
        elif field.name != "places":
            assert now == was, field.name
    assert read.group_places.tolist() == [0, 1]
    assert read.rows[2] == {"prompt": '["text that is JSON"]', "answer": None, "more": {"a": 1.5}, "prompt_id": "q"}


def test_bare_batches_lack_what_no_number_is_made_from(run):
    leave(run, batch(1))
    [read] = read_batches(run, bare=True)
    assert (read.prompts, read.errors, list(read.columns)) == ([], {}, ["prompt_id"])
    np.testing.assert_array_equal(read.scores, batch(1).scores)


def test_only_the_parts_of_the_steps_that_are_asked_for_are_opened(run, monkeypatch):
    leave(run, *(batch(step) for step in (1, 2, 11, 12)))
    opened = []
    original = rollouts.read_part
    monkeypatch.setattr(rollouts, "read_part", lambda part, *a, **k: opened.append(part.name) or original(part, *a, **k))
    assert [own.step for own in read_batches(run, [2, 12])] == [2, 12]
    assert group(run, 1, 1).completions == ["<b>", "4" * 9]
    assert opened == [f"step-{step:07d}-00.parquet" for step in (2, 12, 1)]


def test_a_group_by_its_number_over_all_parts_of_its_step_or_the_widest(run):
    leave(run, batch(1), batch(1, spread=5.0))
    found = group(run, 1, 3)
    assert (found.group_count, found.prompts[0], found.totals.tolist()) == (1, '["text that is JSON"]', [0.0, 5.0])
    assert group(run, 1).totals.tolist() == [0.0, 5.0]
    assert group(run, 1, 0).errors == {"b_reward": {0: "raised ValueError"}}
    assert group(run, 1, 1).errors == {}


def test_what_cannot_be_read_is_an_error_or_noted(run):
    leave(run, *(batch(step) for step in (1, 2, 3)))
    torn = run.rollouts / "step-0000002-00.parquet"
    torn.write_bytes(torn.read_bytes()[:-50])
    left_out: dict[str, str] = {}
    assert [own.step for own in read_batches(run, left_out=left_out)] == [1, 3]
    assert list(left_out) == [torn.name]
    with pytest.raises(RunError, match=torn.name):
        list(read_batches(run))


def test_groups_of_another_size_are_left_out(run):
    columns = {name: values[1:] for name, values in columns_of(batch(1)).items() if values is not None}
    write_part(run.rollouts, 1, columns, ["a_reward", "b_reward"])
    left_out: dict[str, str] = {}
    [read] = read_batches(run, left_out=left_out)
    assert (read.completions, read.group_places.tolist()) == (["<b>", "4" * 9], [1])
    assert left_out == {"step-0000001-00.parquet": "1 groups that are not of 2 completions"}
