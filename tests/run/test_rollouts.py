"""The rollout record: what is written comes back, in parts that a torn one cannot spoil."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from workbench.base.errors import RunError
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.run import parts as parts_module
from workbench.run import rollouts
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.parts import merge, parts
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


# --- parts that are merged ---------------------------------------------------------------------------------------


def named(run) -> list[str]:
    return sorted(part.name[5:-8] for part in run.rollouts.iterdir())


def same(one, other) -> None:
    """Whether two batches are equal to the bit, dtypes and NaN included."""
    for field in dataclasses.fields(ScoredBatch):
        was, now = (getattr(own, field.name) for own in (one, other))
        for first, second in zip(was, now, strict=True) if field.name == "groups" else [(was, now)]:
            if isinstance(first, np.ndarray):
                assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes()), field.name
            else:
                assert (first, type(first)) == (second, type(second)), field.name


def all_same(ones, others) -> None:
    ones, others = list(ones), list(others)
    assert len(ones) == len(others) > 0
    for one, other in zip(ones, others, strict=True):
        same(one, other)


@pytest.fixture
def long(run, monkeypatch):
    """Ten steps in two stages, whose functions differ; in step 3 two batches, in step 8 a group that is not whole."""
    monkeypatch.setattr(parts_module, "MERGE", 4)
    monkeypatch.setattr(parts_module, "_ROWS", 10)  # more than one row group
    surrogate = dataclasses.replace(batch(2), completions=["a\ud800b", "", "<b>", "\x00"])
    leave(run, batch(1), surrogate, batch(3), batch(3, spread=5.0), *(batch(step, spread=step) for step in (4, 5)))
    for step in (6, 7, 9, 10):
        own = dataclasses.replace(batch(step), stage="next", names=["c_reward", "a_reward"], weights=[2.0, 1.0])
        leave(run, dataclasses.replace(own, errors={"c_reward": {3: "raised KeyError"}}))
    columns = {name: values[1:] for name, values in columns_of(batch(8)).items() if values is not None}
    write_part(run.rollouts, 8, columns, ["a_reward", "b_reward"])
    return run


STAGED = ["0000001-to-0000004", "0000005-00", "0000006-to-0000007", "0000008-00", "0000009-to-0000010"]


def test_merged_parts_are_read_as_the_parts_that_they_hold(long):
    """Stages have columns of their own, so that no merged part holds two of them."""
    everything = 'select * from rollouts order by step, "group", generation, total, group_mean'
    before = [[*read_batches(long)], [*read_batches(long, bare=True)], query(long.rollouts, everything)]
    by_step = {step: [*read_batches(long, [step])] for step in range(1, 11)}
    answers = {step: query(long.rollouts, step=step) for step in (1, 5, 8)}
    taught = {step: group(long, step) for step in range(1, 11)}
    merge(long.rollouts, 12)
    assert named(long) == STAGED
    all_same(before[0], read_batches(long))
    all_same(before[1], read_batches(long, bare=True))
    after = query(long.rollouts, everything)
    assert [*before[2].columns] == [*after.columns]
    assert (before[2].dtypes == after.dtypes).all()
    assert before[2].equals(after)
    for step, own in by_step.items():
        all_same(own, read_batches(long, [step]))
        same(taught[step], group(long, step))
    for step, answer in answers.items():
        assert answer.equals(query(long.rollouts, step=step))
    assert len(query(long.rollouts, step=11)) == 0
    left_out: dict[str, str] = {}
    assert len([*read_batches(long, left_out=left_out)]) == 11
    assert left_out == {"step-0000008-00.parquet": "1 groups that are not of 2 completions"}


def test_of_a_merged_part_only_the_rows_of_the_steps_that_are_asked_for_are_read(long, monkeypatch):
    import pyarrow.parquet as pq

    merge(long.rollouts, 4)
    read, original = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, n, **k: read.append((self.num_row_groups, n)) or original(self, n, **k)
    )
    assert [own.step for own in read_batches(long, [4])] == [4]
    assert read == [(2, 1)]


def test_only_whole_stretches_of_steps_that_are_over_are_merged(long):
    merge(long.rollouts, 3)
    assert named(long)[:2] == ["0000001-to-0000003", "0000004-00"]
    merge(long.rollouts, 4)
    assert named(long)[:2] == ["0000001-to-0000003", "0000004-00"]
    assert [own.step for own in read_batches(long)] == [1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10]


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_at(monkeypatch, deletion: int):
    """The block ends as if by a kill at one of its deletions."""
    left, original = iter(range(100)), Path.unlink

    def unlink(self, missing_ok=False):
        if self.suffix == ".parquet" and next(left) == deletion:
            raise Killed
        return original(self, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("deletion", [0, 2])
def test_a_kill_before_the_merged_parts_are_deleted_doubles_nothing(long, monkeypatch, deletion):
    before, rows = [*read_batches(long)], query(long.rollouts, "select count(*) from rollouts").iloc[0, 0]
    with killed_at(monkeypatch, deletion):
        merge(long.rollouts, 4)
    assert {"0000001-to-0000004", "0000004-00"} <= {*named(long)}
    all_same(before, read_batches(long))
    assert query(long.rollouts, "select count(*) from rollouts").iloc[0, 0] == rows
    assert len(query(long.rollouts, step=4)) == 4
    assert group(long, 3, 3).totals.tolist() == [0.0, 5.0]
    merge(long.rollouts, 12)
    assert named(long) == STAGED
    all_same(before, read_batches(long))


def test_a_reader_goes_on_where_parts_are_merged_under_its_hands(long, monkeypatch):
    before, rows = [*read_batches(long)], query(long.rollouts, "select count(*) from rollouts").iloc[0, 0]
    reading = read_batches(long)
    first = next(reading)
    stale = parts(long.rollouts)
    merge(long.rollouts, 12)
    all_same(before, [first, *reading])
    listed = iter([stale, stale])
    monkeypatch.setattr(rollouts, "parts", lambda *asked: next(listed, None) or parts(*asked))
    assert query(long.rollouts, "select count(*) from rollouts").iloc[0, 0] == rows


def test_readers_beside_a_writer_that_merges_see_every_batch_once(run, monkeypatch):
    monkeypatch.setattr(parts_module, "MERGE", 5)
    leave(run, *(batch(step) for step in range(1, 41)))

    def merging():
        for until in range(5, 45, 5):
            merge(run.rollouts, until)

    writer = threading.Thread(target=merging)
    writer.start()
    while True:
        over = not writer.is_alive()
        assert [own.step for own in read_batches(run)] == [*range(1, 41)]
        assert query(run.rollouts, "select distinct step from rollouts order by step")["step"].tolist() == [*range(1, 41)]
        if over:
            break
    assert len(named(run)) == 8


def test_what_cannot_be_read_is_not_merged(long):
    torn = long.rollouts / "step-0000002-00.parquet"
    torn.write_bytes(torn.read_bytes()[:-50])
    merge(long.rollouts, 12)
    assert named(long)[:2] == ["0000001-00", "0000002-00"]
    with pytest.raises(RunError, match=torn.name):
        list(read_batches(long))


def test_a_torn_merged_part_is_named(long):
    merge(long.rollouts, 4)
    torn = long.rollouts / "step-0000001-to-0000004.parquet"
    torn.write_bytes(torn.read_bytes()[:-50])
    left_out: dict[str, str] = {}
    assert [own.step for own in read_batches(long, left_out=left_out)] == [5, 6, 7, 8, 9, 10]
    assert torn.name in left_out
    with pytest.raises(RunError, match=torn.name):
        list(read_batches(long))
    long.release()
    with pytest.raises(RunError, match=torn.name):
        long.reopen(2)
    assert not long.live
    long.reopen(7)  # which it does not reach past
    assert "0000001-to-0000004" in named(long)


@pytest.mark.parametrize("undone", [0, 1, 2])
def test_going_on_from_within_a_merged_part_cuts_it(long, undone):
    before = [own for own in read_batches(long) if own.step <= 3]
    merge(long.rollouts, 12)
    there = {file.name: file.read_bytes() for file in long.rollouts.iterdir()}
    long.release()
    for _ in range(undone):  # it went on, and got no further
        long.reopen(3)
        leave(long, batch(4))
        long.put_back()
        long.release()
        assert {file.name: file.read_bytes() for file in long.rollouts.iterdir()} == there
    long.reopen(3)
    long.went_on()
    all_same(before, read_batches(long))
    assert len(query(long.rollouts, step=4)) == 0
    assert group(long).step == 3
    assert [name for name in named(long) if "to" in name] == ["0000001-to-0000003"]
    leave(long, batch(4), *(batch(step) for step in (5, 6, 7, 8)))
    merge(long.rollouts, 8)
    assert named(long) == ["0000001-to-0000003", "0000004-00", "0000005-to-0000008"]
    all_same([*before, *map(whole, (4, 5, 6, 7, 8))], read_batches(long))
    assert os.listdir(long.rollouts) == [name for name in os.listdir(long.rollouts) if not name.startswith(".")]


def whole(step: int) -> ScoredBatch:
    """As it is read: with the places of its groups, and prompts and columns by their JSON."""
    written = batch(step)
    return dataclasses.replace(written, places=np.arange(2, dtype=np.int32), lengths=written.lengths.astype(np.int32))
