"""Where a notebook's results lie, and how each is shown and kept at once.

results = Results(1, out)
run = launch("scripts/train.py", tp=2, nproc=2, out=results.new("baseline"))
results.table("bill", bill, "What it cost")                  # bill.csv, bill.txt
table = results.figure("loss", *plot_loss(runs))             # loss.png, loss.csv, loss.txt
table = results.drawing("idea", *draw_shards())
"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.lab.figures.display import show_figure, show_table
from helpers.lab.paths import unused

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Results:
    """The folder of one run of a notebook. As text it is its path, from the project root."""

    def __init__(self, notebook: int, folder: str | Path | None = None) -> None:
        """
        Args:
            folder: relative to the project root unless absolute; none takes a new one in runs/.
        """
        new = f"runs/notebook-{notebook}-{datetime.now():%Y%m%d-%H%M%S}"
        self.folder = str(folder or "") or unused(new)

    def __str__(self) -> str:
        return self.folder

    def __fspath__(self) -> str:
        return self.folder

    def new(self, name: str) -> str:
        """A place for a run: `name`, or `name`-2, -3, .. where one stands there already."""
        return unused(f"{self}/{name}")

    def table(
        self, name: str, table: "pd.DataFrame", caption: str, sentence: str | None = None
    ) -> None:
        """Show a table under its caption, with the sentence that reads it, and keep both."""
        show_table(table, caption, sentence, save_to=f"{self}/{name}")

    def figure(
        self, name: str, fig: "Figure", table: "pd.DataFrame", sentence: str | None = None
    ) -> "pd.DataFrame":
        """Show a plot, its numbers and the sentence that reads it, and keep them.

        Its alternative text is what `alternative_text` reads off it. Returns its numbers.
        """
        show_figure(fig, None, table, sentence, save_to=f"{self}/{name}")
        return table

    def drawing(
        self,
        name: str,
        fig: "Figure",
        table: "pd.DataFrame",
        alt: str,
        sentence: str | None = None,
    ) -> "pd.DataFrame":
        """Show a drawing, which brings its own alternative text, and keep it. Returns its table."""
        show_figure(fig, alt, table, sentence, save_to=f"{self}/{name}")
        return table
