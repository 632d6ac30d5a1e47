"""What a figure shows, read off the figure itself, for those who cannot see it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text


def alternative_text(fig: "Figure", sentence: str | None = None) -> str:
    """Each panel's kind, title, axes and named parts, then the sentence that reads the figure."""
    found = [_panel(axes) for axes in fig.axes]
    for legend in fig.legends:
        found.append(_named("Parts", legend.get_texts()))
    return " ".join(words for words in [*found, sentence] if words)


def _panel(axes: "Axes") -> str:
    kind = "Bars" if axes.patches else "Lines"
    title = axes.get_title(loc="left") or axes.get_title()
    measured = " against ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
    found = [f"{kind}: {', '.join(filter(None, (title, measured)))}."]
    if _has_named_rows(axes):
        found.append(_named("Rows", axes.get_yticklabels()))
    if legend := axes.get_legend():
        found.append(_named("Series", legend.get_texts()))
    return " ".join(filter(None, found))


def _has_named_rows(axes: "Axes") -> bool:
    """Whether the rows were given names, as those of bars are; numbers say nothing here."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    return isinstance(axes.yaxis.get_major_locator(), (FixedLocator, StrCategoryLocator))


def _named(what: str, texts: "list[Text]") -> str:
    """Nothing for a panel whose neighbour has the names."""
    names = [name for text in texts if (name := " ".join(text.get_text().split()))]
    return f"{what}: {', '.join(names)}." if names else ""
