"""Requests to a run: what may be asked, who reads it, and what is in force afterwards."""

from __future__ import annotations

import json

import pytest

from workbench.base.errors import RequestError
from workbench.base.workspace import append_line
from workbench.recipe import Recipe
from workbench.run import control_file
from workbench.run.control_file import ACTIONS, ControlReader, RunState, answer_to, check_request, send, write_request
from workbench.run.directory import RunDirectory

MANIFEST = {
    "rewards": {"weights": {"a_reward": 1.0, "b_reward": 2.0}},
    "settings": {"in_force": {"beta": 0.0, "learning_rate": 1e-5}},
}


@pytest.fixture
def run(home) -> RunDirectory:
    return RunDirectory.create("r", Recipe(), MANIFEST)


@pytest.mark.parametrize(
    ("action", "details", "message"),
    [
        ("stopp", {}, "did you mean 'stop'"),
        ("dance", {}, "a run can be asked to stop, pause"),
        ("stop", {"value": 1}, "stop takes no details"),
        ("weight", {"function": "a_reward"}, "write weight FUNCTION VALUE"),
        ("weight", {"function": "a_reward", "value": "much"}, "weight is a number of at most"),
        ("weight", {"function": "a_reward", "value": float("nan")}, "weight is a number of at most"),
        ("weight", {"function": "a_reward", "value": True}, "weight is a number of at most"),
        ("beta", {"value": -0.1}, "beta is a number from 0 on"),
        ("learning_rate", {"value": 0}, "learning_rate is a number above 0"),
    ],
)
def test_what_cannot_be_right_is_refused_with_what_can(action, details, message):
    with pytest.raises(RequestError, match=message):
        check_request(action, details)


def test_numbers_in_text_are_numbers():
    assert check_request("beta", {"value": "1e-3"}) == {"value": 0.001}
    assert check_request("weight", {"function": "f", "value": "-2"}) == {"function": "f", "value": -2.0}


def test_every_action_says_what_it_does():
    assert all(says and set(needs) <= {"function", "value"} for says, needs in ACTIONS.values())


def test_a_request_is_one_line_that_the_trainer_takes_once(run):
    mailbox = ControlReader(run)
    first = send(run, "weight", by="test", function="a_reward", value=3)
    second = send(run, "stop")
    taken = mailbox.take()
    assert [(r.id, r.action, r.by, r.details) for r in taken] == [
        (first, "weight", "test", {"function": "a_reward", "value": 3.0}),
        (second, "stop", "python", {}),
    ]
    assert mailbox.take() == []


def test_requests_of_an_earlier_session_are_not_for_this_one(run):
    send(run, "stop")
    # One that was sent before the trainer began to listen is for it; one of the session before is not.
    assert [request.action for request in ControlReader(run).take()] == ["stop"]
    run.release()
    run.reopen(0)
    assert ControlReader(run).take() == []
    send(run, "pause")
    assert [request.action for request in ControlReader(run).take()] == ["pause"]


def test_a_checkpoint_whose_line_was_torn_is_where_the_first_went_on_from_it(run):
    stage = {"beta": 0.1, "learning_rate": 1e-5, "temperature": 1.0}
    for _ in range(2):  # each is killed later
        run.log_event("continued", 3)
        assert (RunState.of(run).stage, RunState.of(run).weights) == ("", MANIFEST["rewards"]["weights"])
        run.log_event("stage", 3, stage="b", weights={"a_reward": 5.0}, **stage)
        assert (RunState.of(run).stage, RunState.of(run).weights) == ("b", {"a_reward": 5.0})


@pytest.mark.parametrize("answered", [True, False])
def test_a_request_that_comes_after_the_last_look_at_them_is_refused(run, monkeypatch, answered):
    def written_late(run, action, by, details):
        identity = write_request(run, action, by, details)
        run.update_manifest(result={"status": "finished", "steps": 1, "minutes": 0.1})
        if answered:  # it was there in time
            run.log_event("control", 1, id=identity, action=action, applied=False, why="the run is over")
        return identity

    monkeypatch.setattr(control_file, "write_request", written_late)
    if answered:
        assert answer_to(run, send(run, "stop"))["why"] == "the run is over"
    else:
        with pytest.raises(RequestError, match="stop: r ended before it read this"):
            send(run, "stop")


def test_a_line_in_flight_is_read_when_it_is_whole(run):
    mailbox = ControlReader(run)
    with (run.path / "control.jsonl").open("a") as lines:
        lines.write('{"action": "stop", "by": "x"')
        lines.flush()
        assert mailbox.take() == []
        lines.write(', "id": "1"}\n')
    assert [request.action for request in mailbox.take()] == ["stop"]


@pytest.mark.parametrize("line", ["not JSON", "[1]", '{"by": "x"}', "\xff", "3"])
def test_a_line_that_is_no_request_is_handed_out_as_such(run, line):
    mailbox = ControlReader(run)
    (run.path / "control.jsonl").write_text(line + "\n")
    [request] = mailbox.take()
    assert request.action == ""
    assert request.details["line"]


def test_a_run_that_does_not_train_cannot_be_asked(run):
    run.release()
    with pytest.raises(RequestError, match="is not training"):
        send(run, "stop")
    assert not (run.path / "control.jsonl").exists()


def test_the_answer_is_found_by_the_requests_id(run):
    identity = send(run, "stop")
    assert answer_to(run, identity) is None
    run.log_event("control", 3, id=identity, action="stop", applied=True)
    assert answer_to(run, identity)["step"] == 3


def test_what_is_in_force_follows_the_events(run):
    def changed(action, after, **more):
        run.log_event("control", 2, action=action, applied=True, after=after, **more)

    changed("weight", {"a_reward": 3.0, "b_reward": 2.0}, function="a_reward", value=3.0)
    changed("mute", {"a_reward": 3.0, "b_reward": 0.0}, function="b_reward")
    changed("beta", 0.1)
    changed("pause", None)
    run.log_event("control", 2, action="learning_rate", applied=False, after=5.0)
    found = RunState.of(run)
    assert found == RunState({"a_reward": 3.0, "b_reward": 0.0}, {"b_reward": 2.0}, 0.1, 1e-5, None, True)
    changed("unmute", {"a_reward": 3.0, "b_reward": 2.0}, function="b_reward")
    changed("resume", None)
    found = RunState.of(run)
    assert (found.weights["b_reward"], found.muted, found.paused) == (2.0, {}, False)
    assert [event["action"] for event in RunState.of(run).changes] == ["weight", "mute", "beta", "unmute"]


def test_what_was_changed_after_the_checkpoint_that_a_run_goes_on_from_is_undone(run):
    for step, weight in ((2, 3.0), (5, 9.0)):
        after = {"a_reward": weight, "b_reward": 2.0}
        run.log_event("control", step, action="weight", applied=True, after=after, function="a_reward", value=weight)
    run.log_event("continued", 4)
    assert RunState.of(run).weights["a_reward"] == 3.0
    assert [event["step"] for event in RunState.of(run).changes] == [2]


def test_a_stage_brings_its_own_weights():
    found = RunState({"a_reward": 5.0}, muted={"a_reward": 1.0}, beta=0.5)
    found.apply(
        {"event": "stage", "stage": "two", "weights": {"c_reward": 1.0}, "beta": 0.0, "learning_rate": 1e-4},
    )
    assert found == RunState({"c_reward": 1.0}, {}, 0.0, 1e-4, stage="two")


def test_a_torn_line_of_a_killed_writer_does_not_swallow_the_next_request(run):
    mailbox = ControlReader(run)
    (run.path / "control.jsonl").write_text('{"action": "sto')
    append_line(run.path / "control.jsonl", {"action": "pause", "by": "x", "id": "2"})
    assert [request.action for request in mailbox.take()] == ["", "pause"]
    assert json.loads((run.path / "control.jsonl").read_text().splitlines()[1])["id"] == "2"


def test_who_asks_is_never_empty_as_the_run_takes_it_for_nobody(run):
    mailbox = ControlReader(run)
    for by in ("", None):
        append_line(run.path / "control.jsonl", {"action": "stop", "by": by})
    assert [request.by for request in mailbox.take()] == ["?", "?"]


@pytest.mark.parametrize("action", ["learning_rate", "beta"])
def test_more_than_a_hundred_times_what_is_in_force_is_asked_for_twice(home, action):
    settings = {"in_force": {"beta": 0.01, "learning_rate": 0.01}}
    run = RunDirectory.create("slip", Recipe(), {**MANIFEST, "settings": settings})
    send(run, action, value=1)  # a hundred times
    with pytest.raises(RequestError, match=f"{action} = 10: 1e[+]03 times the effective 0.01") as refused:
        send(run, action, value=10)
    assert f"workbench control slip {action} 10 --force" in refused.value.remedy
    send(run, action, value=10, force=True)
    assert len((run.path / "control.jsonl").read_text().splitlines()) == 2


def test_from_a_beta_of_0_there_is_no_factor(run):
    assert send(run, "beta", value=1)


def test_what_the_checkpoint_holds_is_kept_though_it_was_changed_after_the_same_step():
    # One rule for the trainer, the panel and the terminal: what stands before the checkpoint's own event is in force.
    state = RunState({"a_reward": 1.0})
    changed = {"event": "control", "step": 4, "action": "weight", "applied": True, "function": "a_reward"}
    state.apply({**changed, "after": {"a_reward": 3.0}})
    state.apply({"event": "checkpoint", "step": 4})
    state.apply({**changed, "after": {"a_reward": 9.0}})
    assert state.weights == {"a_reward": 9.0}
    state.apply({"event": "continued", "step": 4})
    assert state == RunState({"a_reward": 3.0})
    assert [event["after"]["a_reward"] for event in state.changes] == [3.0]
