"""What an audit can find, and what to do about it: every such text, in one place."""

from __future__ import annotations

_SHOW = "say what a reference completion looks like: Task(ideal=lambda row: ...), and answer_column= if there are answers"
_FIRST = "; the first is {name!r}: {text!r}"
_EARNS = (
    "cannot pay: a reference completion in the format that the prompt asks for earns {earned:g} of {most:g}{only}{also}{never}"
)
_COMPARE = (
    "compare the pattern with that completion, character by character: line breaks (re.DOTALL), white space around the "
    "answer, numbers against text"
)

# Rule -> (severity, text, remedy). A rule is the finding's kind, then a dot and which of that kind's texts it is.
# An error is what a run would die of or learn the wrong thing from; a warning is probably not intended; a note is to know.
TEXTS: dict[str, tuple[str, str, str]] = {
    # the task
    "answer_column": ("warning", "the answers were taken from the column {column!r}: no row has answer_column {named!r}",
        "Task(answer_column={column!r})"),
    "case": ("error", "regression case, {case}", "correct the function, or the case"),
    "case.fails": ("error", "{value}", "{remedy}"),
    "constant.none": ("error", "on {silent} of {rows} prompts no function applies (each returns None), for example {row:.200}",
        "return a number where it applies; does it look for a value that the rows do not have?"),
    "cut": ("error", "a reference completion takes {longest} tokens, and {limit} fit ({format})", "raise max_completion_length"),
    "writes": ("note", "{files} appeared in the working directory: the functions were called, and wrote it",
        "delete it, or let them write elsewhere"),
    "other_rewards": ("note", "{advice}", ""),
    # can it be called?
    "signature": ("error", "{value}", "{remedy}"),
    "signature.style": ("warning", "is written as {style}", "TRL itself calls by keyword"),
    "needs_column": ("error", "{value}", "{remedy}"),
    "chat_plain": ("note", "{note}", ""),
    "chat_plain.wrong": ("warning", "{note}", "the workbench hands it what it reads; TRL itself does not"),
    # does it fail?
    "returns": ("error", "{value}", "{remedy}"),
    "returns.value": ("error", "{error}, on {failed} of {tried} completions" + _FIRST,
        "return a finite number, or None where the function does not apply"),
    "raises": ("error", "{error}, on {failed} of {tried} completions" + _FIRST,
        "return a low score, or None, where there is nothing to read; an exception ends the run"),
    "late": ("error", "{failed} of {tried} completions were not scored in time ({deadline:g} s for all of them)" + _FIRST,
        "does it hang (a pattern that backtracks)? restrict the pattern, or cut the text first; is it only slow (a judge)? "
        "allow more time: --deadline"),
    "slow": ("note", "takes {each:.2g} s per completion: a step of 64 waits {step:.0f} s for it",
        "make it faster, or a coroutine"),
    "no_deadline": ("note", "runs without a deadline, in this process: {reason}", ""),
    # can it pay?
    "constant": ("error", "cannot pay: {score:g} for each of {tried} completions, right, wrong or empty: no signal{never}",
        "score what differs between completions; give a function that only prints the weight 0"),
    "constant.penalty": ("warning", "never strikes: {score:g} for each of {tried} completions{never}",
        "add a completion that triggers it to the task's probes"),
    "constant.guessed": ("warning", "{score:g} for each of {tried} completions; the reference was guessed ({reference!r}){never}",
        _SHOW),
    "cannot_pay": ("error", _EARNS, _COMPARE),
    "cannot_pay.layout": ("warning", _EARNS, _COMPARE),
    "cannot_pay.guessed": ("warning", "the reference was guessed ({reference!r}), and it earns {earned:g} of {most:g}{never}",
        _SHOW),
    "cannot_pay.type": ("note", "the answers are of type {type}; a policy writes text", ""),
    "sometimes": ("warning", "pays the reference completion in full on {paid} of {rows} prompts; {earned:g} on prompt {row}",
        "look at that prompt and its answer: can the score be earned there?"),
    "sometimes.never": ("note", "does not apply to the prompts that were tried (None for each)", ""),
    "unreached": ("note", "no reference completion that was tried reaches {branch}", ""),
    "tokenizer": ("error", "cannot pay with this tokenizer: a reference completion earns {paid:g}, decoded {left}: {reason}",
        "use tags that are plain text to the tokenizer, and do not ask for what the template writes itself"),
    "layout": ("warning", "pays a reference completion only when it is written {style}, and the prompt does not say so",
        "show the exact format in the prompt, or let the pattern allow more (\\s*)"),
    "spelling": ("warning", "the right answer earns no more than a wrong one when it is written {ways}",
        "compare numbers, not text: workbench.rewards.compare.same_answer"),
    # what else pays?
    "hackable": ("error", "{what} earns {earned:g}, the reference completion {reference:g}: {name!r}{others}",
        "pay only for what the reference completion has and this one lacks"),
    "padding": ("warning", "{names} earns as much as the reference completion: no function minds the text around it",
        "to enforce the format, pay for it (strict_format_reward) or for brevity"),
    "silence": ("warning", "an empty completion earns {empty:g} from it, the reference completion {reference:g}",
        "pay nothing for a completion without an answer, or weigh it far below the right answer"),
    "right_by": ("warning", "calls a wrong answer right: it earns {score:g}, and above 0 counts as right ({chosen})",
        "name the function that judges the answer: right_by="),
    "overlap": ("note", "ranks the probes much as {other} does (rank correlation {alike:.2f}): one thing is paid twice",
        "give one of the two less weight if that is not intended"),
    # how does it score?
    "scale": ("note", "is the only function: multiplying its scores, or its weight, changes no advantage",
        "GRPO divides by the group's std anyway, unless scale_rewards is none"),
    "state": ("note", "nothing calls its method {method!r} during a run", ""),
    "random": ("warning", "does not repeat: the same completions score differently when scored again, or beside others",
        "a score that depends on chance or on earlier calls teaches chance; the findings below may be chance, too"),
    "unit": ("note", "counts characters{best}{but}",
        "count completion_ids for tokens, or say characters in its name or docstring"),
    "unbounded": ("warning", "its score {moves} without a bound as text is added: one long completion decides its whole group",
        "cap it: max(-1.0, ...) or min(1.0, ...)"),
    "evaluates": ("warning", "{place}: runs what a model wrote as Python, with all the rights of this process",
        "use a parser (workbench.rewards.verifiers.evaluate), or a sandbox"),
    "swallows": ("warning", "{place}: an exception becomes a score there, unnoticed",
        "catch only what you expect of a completion, such as ValueError from float(...)"),
}  # fmt: skip
