"""A page of the rollout record: filtered by an expression, sorted by any column, read by DuckDB
however long the record.
"""

from __future__ import annotations

from workbench.base.errors import RunError
from workbench.inspection.reading import Listing, quoted, shown_prompts
from workbench.run.batch import NO_SPREAD
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import query

PAGE = 20  # completions
EXAMPLES = (
    "step > 100, total < 0, not \"right\", finish_reason = 'length', completion like '%sorry%',"
    " dead, error is not null"
)


def browse(
    run: RunDirectory, where: str = "", sort: str = "", page: int = 0, size: int = PAGE
) -> Listing:
    """One page of a run's completions, filtered and sorted; only that page is read, however long
    the record.

    >>> found = wb.inspection.browse(wb.open_run(), where='"right" and step = 1', sort="total desc")
    >>> bool((found.frame["total"].diff().dropna() <= 0).all())
    True

    Args:
        where: an expression in DuckDB's SQL over the record's columns, such as `total < 0 and
            finish_reason = 'length'`; a score is `"score.correctness_reward"`. `prompt` is what it
            asks, as shown; `dead` is true in groups without spread, `error` holds what functions
            raised.
        sort: a column or an expression, with `desc` for the largest first; empty: as recorded.
        page: counted from 0.

    Raises:
        RunError: if nothing was recorded, or the expression cannot be read.
    """
    import duckdb

    if page < 0:
        raise RunError(f"page = {page}", rule="pages are counted from 0", remedy="give 0 or more")
    names = [*query(run.rollouts, "select * from rollouts limit 0").columns]
    scores = "".join(f"{quoted(name)}, " for name in names if name.startswith("score."))
    errors = ", ".join(quoted(name) for name in names if name.startswith("error.")) or "null"
    filtered, ordered, first = where.strip(), sort.strip(), page * size
    # What a prompt asks, as a page shows it, is what a filter means by it; a column that is not
    # asked for costs nothing.
    sql = f"""select step, "group", generation, total, advantage, {scores} length_tokens,
        finish_reason, recorded_prompt as prompt, completion from (
            select * replace (coalesce(json_extract_string(
                case when prompt like '[{{%' then try_cast(prompt as json) end, '$[#-1].content'
            ), prompt) as prompt), prompt as recorded_prompt,
            coalesce(group_std, 0) < {NO_SPREAD} as dead,
            nullif(concat_ws('; ', {errors}), '') as error from rollouts
        ) where ({filtered or "true"})"""
    if ordered:
        sql += f' order by {ordered}, step, "group", generation'
    sql += f" limit {int(size) + 1} offset {int(first)}"
    try:
        if len(duckdb.extract_statements(sql)) != 1:
            raise duckdb.ParserException("more than one statement")
        frame = query(run.rollouts, sql)
    except duckdb.Error as error:
        lines = str(error).splitlines()
        why = " ".join(line for line in lines if line and not line.startswith(("LINE", " ")))
        columns = [
            name if name.isidentifier() and name not in ("group", "right") else quoted(name)
            for name in names
        ]
        raise RunError(
            f"{' sorted by '.join(filter(None, (where, sort)))}: {why}",
            rule="filter and order are expressions over the record's columns:"
            f" {', '.join(columns)}, dead, error",
            remedy=f"for example: {EXAMPLES}",
        ) from None
    more, frame = len(frame) > size, frame.head(size)
    frame["prompt"] = shown_prompts(frame["prompt"])
    verdict = f"completions {first + 1:,} to {first + len(frame):,}"
    if not len(frame):
        verdict = "no more completions" if page else "no completions"
    if filtered:
        verdict += f" where {where}"
    if ordered:
        verdict += f", sorted by {sort}"
    if more:
        verdict += "; there are more"
    return Listing(verdict, frame, {"more": more, "page": page})
