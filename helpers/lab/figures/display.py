"""Showing a figure or a table so that everyone can read it, and a headless run keeps it.

A figure is a PNG with alternative text, then the table of its numbers, then one sentence that reads
it. In a notebook each part is an output with an HTML and a plain-text form; elsewhere the text is
printed. With `save_to` the same is left on disk: NAME.png, NAME.csv (raw), NAME.txt (as shown).
"""

import base64
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.lab.figures.alternative_text import alternative_text
from helpers.lab.figures.tables import escape, table_html, table_text
from helpers.lab.paths import ROOT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FROM_NOTEBOOK = "../"  # to the project root, from the folder that notebooks lie in
DPI = 160  # twice the pixels of a screen, shown at half size: sharp on any display


def show_figure(
    fig: "Figure",
    alt: str | None = None,
    table: "pd.DataFrame | None" = None,
    sentence: str | None = None,
    save_to: str | Path | None = None,
) -> None:
    """Show a matplotlib figure, the table of its numbers and the sentence that reads it.

    Args:
        alt: what the picture shows, for those who cannot see it; None reads it off the figure.
        table: the numbers in it, or what a drawing says.
        save_to: where to leave it, without suffix; relative to the project root unless absolute.
    """
    alt = alt or alternative_text(fig, sentence)
    caption = _caption(table)
    picture = png(fig, alt)
    if save_to is not None:
        path = _target(save_to)
        _with(path, ".png").write_bytes(picture)
        _save_text(path, table, caption, sentence)
    _show(alt, _image(picture, alt, round(fig.get_figwidth() * DPI / 2)))
    if table is not None:
        _show(table_text(table, caption), table_html(table, caption))
    if sentence:
        show_text(sentence)


def show_table(
    df: "pd.DataFrame",
    caption: str,
    sentence: str | None = None,
    save_to: str | Path | None = None,
) -> None:
    """Show a table under its caption, and the sentence that reads it. `save_to` as in show_figure;
    no PNG is left."""
    if save_to is not None:
        _save_text(_target(save_to), df, caption, sentence)
    _show(table_text(df, caption), table_html(df, caption))
    if sentence:
        show_text(sentence)


def show_text(text: str) -> None:
    """Show sentences as a paragraph, each line of the text on a line of its own."""
    _show(text, f"<p>{'<br>'.join(map(escape, text.splitlines()))}</p>")


def show_code(title: str, code: str, file: str | None = None) -> None:
    """Show Python code under a title, which links to its file, relative to the project root."""
    text = f"{title}\n\n{code}"
    if in_notebook():
        heading = f"[`{title}`]({FROM_NOTEBOOK}{file})" if file else f"`{title}`"
        markdown = f"{heading}\n\n```python\n{code}\n```"
        display_bundle({"text/markdown": markdown, "text/plain": text})
    else:
        print(text)


def link(text: str, file: str) -> str:
    """HTML that opens a file of the project, whose path is relative to its root."""
    return f'<a href="{FROM_NOTEBOOK}{html.escape(file)}">{html.escape(text)}</a>'


def png(fig: "Figure", alt: str) -> bytes:
    """The figure as PNG bytes, the same each time, with `alt` inside as its description.

    Drawings have few colours: a palette of 32 makes a quarter of the bytes, and notebooks small.
    """
    import matplotlib
    from matplotlib.text import Text
    from PIL import Image, PngImagePlugin

    drawn, buffer = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"text.parse_math": False}):  # of texts that drawing makes
        for text in fig.findobj(Text):
            text.set_parse_math(False)  # a run may be called $x, and a price be in $
        fig.savefig(drawn, format="png", dpi=DPI, facecolor="white")
    described = PngImagePlugin.PngInfo()
    described.add_text("Description", alt)
    picture = Image.open(drawn).convert("RGB").quantize(32, dither=Image.Dither.NONE)
    picture.save(buffer, "PNG", optimize=True, pnginfo=described, dpi=(DPI, DPI))
    return buffer.getvalue()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def display_bundle(bundle: dict[str, Any]) -> None:
    """One output of a notebook's cell, in several forms."""
    from IPython.display import display

    display(bundle, raw=True)


def _show(text: str, as_html: str) -> None:
    if in_notebook():
        display_bundle({"text/html": as_html, "text/plain": text})
    else:
        print(text)


def _caption(table: "pd.DataFrame | None") -> str:
    words = table is not None and table.select_dtypes("number").empty
    return "The same in words" if words else "The numbers in the figure"


def _image(picture: bytes, alt: str, width: int) -> str:
    """The picture as HTML, for a page shows no alternative text of an output of type image/png."""
    data = base64.b64encode(picture).decode()
    return f'<img alt="{html.escape(alt)}" width="{width}" src="data:image/png;base64,{data}">'


def _target(save_to: str | Path) -> Path:
    path = ROOT / save_to
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _with(path: Path, suffix: str) -> Path:
    return path.parent / (path.name.removesuffix(".png") + suffix)


def _save_text(
    path: Path, table: "pd.DataFrame | None", caption: str, sentence: str | None
) -> None:
    if table is None:
        return
    table.to_csv(_with(path, ".csv"))
    text = table_text(table, caption) + (f"\n\n{sentence}" if sentence else "")
    _with(path, ".txt").write_text(text + "\n", encoding="utf-8")
