"""Print the page, and write it to docs/planner.md. See the docstring of the package."""

import argparse

from helpers.commands import say
from helpers.planner.audit import page, spread
from helpers.planner.audit.constants import fit_all

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m helpers.planner.audit", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants anew, for minutes")
    if parser.parse_args().fit:
        say("\n".join(fit_all()))
        spread.write()
    text = page.markdown()
    say(text)
    page.PAGE.parent.mkdir(exist_ok=True)
    page.PAGE.write_text(text, encoding="utf-8")
    say(f"written: {page.PAGE.name}")
