"""Records that parse and are odd: another version's, a stranger's, edited by hand. What fits is read, what does not is named."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import Running

import workbench as wb
from workbench.base.errors import RunError, WorkbenchError
from workbench.commands.reporting import write_report
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.held_out import held_out, in_numbers, reward_errors
from workbench.run.parts import opened
from workbench.run.record import fitted_lines
from workbench.run.rollouts import read_batches
from workbench.tasks.loading import load_task
from workbench.views import watch
from workbench.views.run_view import FollowedRun

WEIGHTS = {"correctness_reward": 1.0, "format_reward": 1.0}
MEASURED = {
    "key": "k", "right": "1010", "correct": 0.5, "low": 0.2, "high": 0.8, "reward": 1.0, "seconds": 1.0,
}  # fmt: skip
GAIN = {"gain": 0.1, "gain_low": -0.1, "gain_high": 0.3}
ODD = [True, 3, -1, 10**400, 1.5, "x", [], [1], {}, {"a": "b"}, [[]]]


def made() -> RunDirectory:
    """A run with an event of each kind that somebody reads."""
    running = Running("r", 4)
    event = running.run.log_event
    event("held_out", 0, adapter="base", **MEASURED)
    event("stage", 0, stage="1", weights=WEIGHTS, beta=0.01, learning_rate=1e-5, temperature=1.0)
    running.step()
    running.step()
    change = {"by": "me", "applied": True, "from_step": 3}
    event(
        "control", 2, action="weight", function="format_reward", before=WEIGHTS, after=WEIGHTS | {"format_reward": 0.5}, **change
    )
    event("control", 2, action="beta", before=0.01, after=0.05, **change)
    event("curriculum", 2, before=2, after=1, why="10 % right over 5 batches")
    event("reward_error", 2, function="format_reward", completions=2, error="x")
    event("health", 2, name="dead_groups", state="alarm")
    event("checkpoint", 2, folder="checkpoint-2")
    event("continued", 2)
    running.step()
    running.step()
    event("held_out", 4, adapter="checkpoints/best-4", **MEASURED, **GAIN)
    told = {"base": 0.5, "seconds": 1.0, "share": 0.1, "prompts": 4}
    told |= dict.fromkeys(("last", "best"), {name: MEASURED[name] for name in ("correct", "low", "high")} | GAIN | {"step": 4})
    running.run.update_manifest(
        task={"name": "doubles", "source": "x.py", "right_by": None}, versions={"trl": "0.22"}, policy={"name": "tiny"}
    )
    run = running.finish()
    run.update_manifest(result=run.result() | {"held_out": told})
    return run


def written(run: RunDirectory, name: str, *lines: object) -> None:
    with (run.path / name).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def readers(run: RunDirectory) -> list:
    followed = FollowedRun(run)
    return [run.describe(), watch.snapshot_text(followed), wb.examine_run(run), wb.explain_group(run), run.planned_steps]


def understood(run: RunDirectory) -> list:
    events = run.events()
    return [run.metrics(), run.result(), RunState.of(run).in_force, held_out(events), reward_errors(events)]


def test_what_training_writes_is_read_to_the_last_value(home):
    run = made()  # a warning is an error here
    for name, read in (("events.jsonl", run.events()), ("metrics.jsonl", run.metrics()), ("manifest.json", [run.manifest()])):
        text = (run.path / name).read_text()
        assert read == ([json.loads(text)] if name == "manifest.json" else [json.loads(line) for line in text.splitlines()])


def test_the_odd_of_all_kinds_at_once_changes_nothing_of_what_fits(home):
    run = made()
    before = understood(run)
    states = [verdict.state for verdict in wb.examine_run(run)]
    written(
        run, "events.jsonl",
        {"event": "checkpoint", "step": "four"}, {"event": "held_out", "step": 4, "correct": 1.0}, {"event": 3},
        {"event": "reward_error", "step": 4, "function": "format_reward"}, {"event": "stage", "step": 4, "stage": "2"},
        {"event": "control", "action": "weight", "applied": True, "step": [4], "after": None} | {"applied": False},
        {"event": "health", "state": ["alarm"], "step": None}, {"step": 4},
    )  # fmt: skip
    written(run, "metrics.jsonl", {"step": True, "reward": 9.0}, {"step": "5"}, {"reward": 1.0}, {"step": 4, "reward": [1]})
    with pytest.warns(UserWarning, match="left out, not as training writes it"):
        assert before == [
            run.metrics(),
            run.result(),
            RunState.of(run).in_force,
            held_out(run.events()),
            reward_errors(run.events()),
        ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [verdict.state for verdict in wb.examine_run(run)] == states
    told = {str(each.message).partition(":")[0] for each in said}
    assert told == {"events.jsonl", "metrics.jsonl"}


def test_a_manifest_is_read_as_far_as_it_fits_and_kept_as_it_is(home):
    run = made()
    manifest = run.read_json("manifest.json")
    manifest["settings"]["in_force"] |= {"scale_rewards": "quantile", "a_setting_of_tomorrow": [1]}
    odd = {
        "adapter": 3,
        "versions": 3,
        "stages": [3, {"name": "1", "settings": []}],
        "result": manifest["result"] | {"minutes": "x"},
    }
    run.write_json("manifest.json", manifest | odd)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, result = run.manifest(), run.result()
        readers(run)
    told = {str(each.message) for each in said}
    assert "manifest.json: settings: in_force: scale_rewards = 'quantile': left out, not as training writes it" in told
    assert "manifest.json: adapter = 3: left out, not as training writes it" in told
    assert found["stages"] == [{"name": "1"}]
    assert found["settings"]["in_force"]["a_setting_of_tomorrow"] == [1]
    assert (result["status"], result["steps"]) == ("finished", 4)
    assert result["minutes"] == pytest.approx(4 * 0.3 / 60)  # from the rows
    run.update_manifest(note="kept")
    assert run.read_json("manifest.json") == manifest | odd | {"note": "kept"}


@pytest.mark.parametrize("value", [True, -1, 2**31, 1.0, "1", None, [1], float("nan")])
def test_a_step_is_a_whole_number_that_the_record_can_hold(value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [*fitted_lines("metrics.jsonl", [{"step": value}, {"step": 2**31 - 1}])] == [{"step": 2**31 - 1}]


@pytest.mark.parametrize(
    ("value", "fits"), [(0.5, True), ("inf", True), (None, True), (1e301, False), ("nan", False), (True, False)]
)
def test_a_metric_is_a_number(value, fits):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [*fitted_lines("metrics.jsonl", [{"step": 1, "reward": value}])] == [
            {"step": 1} | ({"reward": value} if fits else {})
        ]


def test_copies_of_a_task_that_name_each_other_are_loaded(home):
    one, other = home / "one", home / "other"
    for folder, source in ((one, other), (other, one)):
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"task": {"source": str(source / "task.py")}}))
        (folder / "task.py").write_text("import workbench as wb\ntask = wb.load_task('arithmetic')\n")
    assert load_task(one / "task.py").right_function == load_task(other / "task.py").right_function


def test_a_small_file_of_millions_of_rows_is_refused_before_it_is_read(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = tmp_path / "step-0000001-00.parquet"
    table = pa.table({"step": pa.repeat(1, 2**20)})
    pq.write_table(table, part, compression="zstd")
    with opened(part) as (_, holds):
        assert holds == [(part.name, 2**20)]
    pq.write_table(pa.concat_tables([table, table[:1]]), part, compression="zstd")
    assert part.stat().st_size < 100_000
    with pytest.raises(RunError, match="more than 1,048,576 completions"), opened(part):
        pass


def retyped(column: str, value: object):
    def change(table):
        import pyarrow as pa

        return table.set_column(table.column_names.index(column), column, pa.array([value] * len(table)))

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(lambda table, holds=holds: table.replace_schema_metadata({"holds": holds}) for holds in ("3", '"x"', "{")),
        retyped("step", "x"),
        retyped("total", "x"),
        retyped("prompt", 3),
        retyped("columns", "[1]"),
        retyped("columns", "{"),
    ],
)
def test_a_part_of_another_writer_is_named_and_the_others_are_read(change, home):
    import pyarrow.parquet as pq

    run = made()
    last = sorted(run.rollouts.glob("*.parquet"))[-1]
    pq.write_table(change(pq.read_table(last)), last)
    with pytest.raises(RunError, match=last.name) as met:
        wb.explain_group(run)
    assert "move that file out" in met.value.remedy
    left_out = {}
    assert [batch.step for batch in read_batches(run, left_out=left_out)] == [1, 2, 3]
    assert [*left_out] == [last.name]


def places(value: object, before: tuple = ()) -> list[tuple]:
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [(*before, key) for key, _ in inside] + [place for key, own in inside for place in places(own, (*before, key))]


def test_a_gain_without_its_interval_is_left_out_and_called_no_base():
    whole = {"step": 4, "correct": 0.5, "low": 0.2, "high": 0.8, **GAIN}
    assert in_numbers(whole) == "50 % (20 to 80), +10 points over base (-10 to +30)"
    assert in_numbers({key: own for key, own in whole.items() if key != "gain_low"}) == "50 % (20 to 80)"
    assert in_numbers({key: own for key, own in whole.items() if key not in GAIN}) == "50 % (20 to 80), base"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(folder))
        run = made()
        yield run


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_another_kind_is_a_raw_error(recorded, data):
    name = data.draw(st.sampled_from(["events.jsonl", "metrics.jsonl", "manifest.json"]))
    file = recorded.path / name
    text = file.read_text()
    objects = [json.loads(text)] if name == "manifest.json" else [json.loads(line) for line in text.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        content = data.draw(st.sampled_from(objects))
        *way, last = data.draw(st.sampled_from(places(content)))
        for key in way:
            content = content[key]
        content[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
        objects = [each for each in objects if places(each)]
    file.write_text("\n".join(map(json.dumps, objects)) + "\n")
    try:
        for read in (readers, lambda run: write_report(run, markdown=True), lambda run: wb.open_run(run.path)):
            with contextlib.suppress(WorkbenchError):
                read(recorded)
    finally:
        file.write_text(text)
