"""docs/leaving.md says what the tables say."""

import re
from pathlib import Path

from helpers.smp.reading.catalogue import catalogue

TEXT = (Path(__file__).parents[3] / "docs/leaving.md").read_text("utf-8")


def rows(head):
    """The cells of a table, by the first one."""
    table = TEXT.partition(head)[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) > 1 and not row[0].startswith("---")}


def test_the_days_and_their_sources():
    told = rows("| part | what its own pages say | date | source |\n")
    assert told == {
        name: [one.words, told[name][1], one.source] for name, one in catalogue().endings.items()
    }
    for name, one in catalogue().endings.items():
        assert told[name][1].removeprefix("read ") == one.date


def test_every_library_has_a_count():
    libraries = set(catalogue().endings)
    assert set(rows("| part | files | converted | left out | refused |\n")) == libraries


def test_calls_named_in_it_have_rows():
    names = re.findall(r"`((?:smp|tsm)\.[A-Za-z_]+)", TEXT)
    assert len(names) > 5 and all(catalogue().find(name) for name in names)
    assert all(not catalogue().find(name).name.endswith("*") for name in names)
