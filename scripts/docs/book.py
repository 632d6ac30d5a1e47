"""The notebooks and the documentation as static pages, by Sphinx and MyST.

    bash scripts/book               # writes runs/book/index.html
    bash scripts/book FOLDER

Nothing is run: the pages show the outputs that the notebooks store, and of sliders the table that
stands under them. A page needs nothing from the network.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = {
    "Notebooks": "notebooks/[0-9]*.ipynb",
    "Documentation": "docs/*.md",
    "Project": "C*.md",
    "Data": "data/README.md",
}
FRONT = "README"
SETTINGS = {
    "project": "Large language models across many GPUs",
    "author": "the contributors",
    "copyright": "the contributors, Apache-2.0",
    "extensions": ["myst_nb"],
    "root_doc": FRONT,
    "include_patterns": [f"{FRONT}.md", *CHAPTERS.values()],
    "exclude_patterns": [".*", "helpers", "runs", "scripts", "tests"],
    "nb_execution_mode": "off",
    "nb_render_markdown_format": "myst",  # shown source links to its file
    "myst_heading_anchors": 4,  # links of the pages name headings, as on GitHub
    "html_theme": "sphinx_book_theme",
    "html_title": "Large language models across many GPUs",
    "html_static_path": ["scripts/docs/book.css"],
    "html_css_files": ["book.css"],
    "html_copy_source": False,
    "html_theme_options": {
        "use_download_button": False,
        "use_fullscreen_button": False,
        "home_page_in_toc": True,
    },
}


def contents() -> str:
    """The chapters of the book, for the end of its front page."""
    parts = []
    for caption, pattern in CHAPTERS.items():
        files = (path.relative_to(ROOT).with_suffix("") for path in ROOT.glob(pattern))
        names = "\n".join(path.as_posix() for path in sorted(files, key=_place))
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```")
    return "\n\n".join(parts)


def _place(path: Path) -> tuple[int, str]:
    """Notebooks by their numbers, the rest by name."""
    number = path.name.partition("_")[0]
    return (int(number) if number.isdigit() else 0, path.as_posix())


def build(folder: Path) -> int:
    """Write the pages; returns 0, or 1 where Sphinx warns of anything."""

    def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
        if name == FRONT:
            source[0] += f"\n\n{contents()}\n"

    with tempfile.TemporaryDirectory() as parsed:
        app = Sphinx(
            srcdir=ROOT,
            confdir=None,
            outdir=folder,
            doctreedir=parsed,
            buildername="html",
            confoverrides=SETTINGS | {"nb_execution_cache_path": parsed},
            status=None,
            warningiserror=True,
        )
        app.connect("source-read", add_contents)
        app.build(force_all=True)
    (folder / "index.html").write_text(
        f'<meta http-equiv="refresh" content="0; url={FRONT}.html">', encoding="utf-8"
    )
    return app.statuscode


def main() -> int:
    parser = argparse.ArgumentParser(description="the notebooks and the documentation as pages")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "runs" / "book")
    folder = parser.parse_args().folder.resolve()
    code = build(folder)
    print(f"{folder / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
