"""A plan in a cell: the batch in words, what is not as it was asked, and every setting with whose doing it is."""

from __future__ import annotations

from typing import Any

from workbench.views.tables import Table, pre


class PlanView:
    """A `Plan` as HTML; as text it is the plan's own."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def _repr_html_(self) -> str:
        lines = [f"{self.plan.words}.", f"{self.plan.generation}.", *(f"note: {note}" for note in self.plan.notes)]
        return pre("\n".join(lines)) + Table(self.plan.HEADER, self.plan.cells)._repr_html_()

    def __str__(self) -> str:
        return str(self.plan)
