"""Sliders that ask "what if": the table for the starting values, and one that follows them.

    explore(memory_table, "Memory of a GPU", choices={"tp": (1, 2, 4, 8)}, model="llama2-7b", ...)

The table for the starting values is shown first and stays, also where nothing runs. Where a kernel
and widgets are, sliders and a second table follow it.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.lab.figures.display import display_bundle, in_notebook, show_table, show_text
from helpers.lab.figures.tables import table_html

if TYPE_CHECKING:
    import pandas as pd

WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = (
    "Sliders stand here while the notebook runs in JupyterLab; the table above is where they start."
)


def explore(
    table_of: Callable[..., "pd.DataFrame"],
    caption: str,
    choices: Mapping[str, Sequence[Any]],
    save_to: str | Path | None = None,
    **start: Any,
) -> None:
    """Show the table for `start`; in a notebook also sliders, and a table that follows them.

    Args:
        table_of: takes the names of `start`.
        choices: by name the values of its slider, among them the one to start with.
        save_to: as in show_table, for the first table.
    """
    show_table(table_of(**start), _caption(caption, choices, start), save_to=save_to)
    if not in_notebook():
        show_text(STILL)
        return
    box = sliders(table_of, caption, choices, start)
    view = {"model_id": box.model_id, "version_major": 2, "version_minor": 0}
    display_bundle({WIDGET: view, "text/html": f"<p>{STILL}</p>", "text/plain": STILL})


def sliders(
    table_of: Callable[..., "pd.DataFrame"],
    caption: str,
    choices: Mapping[str, Sequence[Any]],
    start: Mapping[str, Any],
) -> Any:
    """The widget: a slider a name, and under them the table. What cannot be is said in its place.

    Raises:
        UserError: a slider does not have the value to start with.
    """
    widgets = need("ipywidgets", "notebooks")
    for name, values in choices.items():
        if start[name] not in values:
            raise UserError(f"the slider {name} starts at {start[name]!r}, which it does not have")
    by_name = {
        name: widgets.SelectionSlider(
            options=list(values),
            value=start[name],
            description=name,
            continuous_update=False,
            style={"description_width": "7em"},
        )
        for name, values in choices.items()
    }
    table = widgets.HTML()

    def follow(_: Any = None) -> None:
        asked = {**start, **{name: slider.value for name, slider in by_name.items()}}
        try:
            table.value = table_html(table_of(**asked), _caption(caption, choices, asked))
        except UserError as error:
            table.value = f"<p>{html.escape(str(error))}</p>"

    for slider in by_name.values():
        slider.observe(follow, names="value")
    follow()
    return widgets.VBox([*by_name.values(), table])


def _caption(caption: str, choices: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    return f"{caption}: {', '.join(f'{name} {asked[name]}' for name in choices)}"
