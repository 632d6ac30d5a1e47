"""A table made of rows, and what it looks like: as HTML, as plain text, in words."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import need

if TYPE_CHECKING:
    import pandas as pd

LONGEST_WORD = 18  # characters that a column is kept wide enough for


def table_of(rows: Mapping[Any, Mapping[str, Any]], of: str) -> "pd.DataFrame":
    """A table from its rows by label; `of` is the name of the labels' column."""
    pandas = need("pandas", "notebooks")
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(of)


def table_html(df: "pd.DataFrame", caption: str) -> str:
    """A real table for a browser: caption, and headers with their scope."""
    sides = ["left", *_sides(df)]
    head = "".join(
        _html_cell(str(name), side, scope="col") for name, side in zip(_header(df), sides)
    )
    rows = []
    for label, *values in _cells(df):
        cells = "".join(_html_cell(text, side) for text, side in zip(values, sides[1:]))
        rows.append(f"<tr>{_html_cell(label, 'left', scope='row')}{cells}</tr>")
    return (
        f'<table><caption style="caption-side:top;text-align:left">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def table_text(df: "pd.DataFrame", caption: str) -> str:
    """The same table in plain text, columns aligned."""
    sides = ["left", *_sides(df)]
    lines = [[str(name) for name in _header(df)], *_cells(df)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if side == "left" else cell.rjust(width)
            for cell, width, side in zip(line, widths, sides)
        ).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([caption, "", text[0], rule, *text[1:]])


def in_words(table: "pd.DataFrame") -> str:
    """Each row of the table as `label: column value, column value.`"""
    return " ".join(
        f"{label}: {', '.join(f'{column} {value}' for column, value in row.items())}."
        for label, row in table.iterrows()
    )


def listed(words: Sequence[str]) -> str:
    """The words as `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def number(value: Any) -> str:
    """A cell's text: thousands separated, four digits kept, nothing for a missing value."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool) or type(value).__name__ == "bool":  # numpy's is another class
        return "yes" if value else "no"
    if hasattr(value, "item"):
        return number(value.item())
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def escape(text: str) -> str:
    """For HTML in a notebook, where two dollar signs in one text would be read as mathematics."""
    return html.escape(text).replace("$", "<span>$</span>")


def _header(df: "pd.DataFrame") -> list[str]:
    return [df.index.name or "", *df.columns]


def _cells(df: "pd.DataFrame") -> list[list[str]]:
    """Each row's texts: its label, then its values."""
    columns = [df[name].tolist() for name in df.columns]
    return [[number(value) for value in row] for row in zip(df.index, *columns)]


def _sides(df: "pd.DataFrame") -> list[str]:
    """Columns of words to the left; those with a number in them to the right."""
    columns = [df[name].tolist() for name in df.columns]
    return ["left" if all(isinstance(v, str) for v in column) else "right" for column in columns]


def _html_cell(text: str, side: str, scope: str = "") -> str:
    longest = max(map(len, text.split()), default=0)
    wraps = ";overflow-wrap:anywhere" if longest > LONGEST_WORD else ""  # else its table is cut
    style = f'style="text-align:{side}{wraps}"'
    if scope:
        return f'<th scope="{scope}" {style}>{escape(text)}</th>'
    return f"<td {style}>{escape(text)}</td>"
