"""The rollout record: what is written comes back, in parts that a torn one cannot spoil."""

from __future__ import annotations

import pytest

from workbench.errors import RunError
from workbench.run.rollouts import query, write_part

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
