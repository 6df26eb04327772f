"""Tables as plain text, in the style of every report."""

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

# No column of a table is ever cut; this only has to be wider than any row.
_WIDTH = 1000


def render(table: Table) -> str:
    """A rich table as plain text: no colours, no line cut."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=_WIDTH,
        color_system=None,
        markup=False,
        highlight=False,
        emoji=False,
        force_jupyter=False,  # which would show the table and leave the text empty
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()).rstrip()


def plain_table(*columns: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """An empty table in the style of every report; the columns in `right` are aligned right."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left"
    )
    for column in columns:
        justify = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ignore")
    return table
