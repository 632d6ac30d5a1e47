"""Print every row, and write docs/planner.md. See the docstring of the package."""

import sys

from helpers.planner.audit import page, spread
from helpers.planner.audit.constants import fit_all
from helpers.planner.audit.rows import lines

if __name__ == "__main__":
    if "--fit" in sys.argv:
        print("\n".join(fit_all()))
        spread.write()
    print("\n".join(lines()))
    page.PAGE.parent.mkdir(exist_ok=True)
    page.PAGE.write_text(page.markdown(), encoding="utf-8")
    print(f"written: {page.PAGE.name}")
