"""Every use of a script is told once, on its line, with the verdict that is written beside it."""

import ast
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from helpers.smp.leaving import leave
from helpers.smp.reading.catalogue import REFUSED, VERDICTS, catalogue

SCRIPTS = Path(__file__).parents[1] / "scripts"
MARK = re.compile(r"  # (.+)$")
EACH_SCRIPT = pytest.mark.parametrize(
    "path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem
)


def marks(text):
    """Line numbers with their verdicts, as the comments at their ends say: `converted x2`."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if mark := MARK.search(line):
            words = (part.partition(" x") for part in mark[1].split(", "))
            found[number] = sum((Counter({v: int(n or 1)}) for v, _, n in words), Counter())
    return found


def _body(text):
    return ast.parse(text).body


def _line(node):
    return node.lineno


def told(found):
    lines = {}
    for line in found.lines:
        lines.setdefault((line.place.cell, line.place.line), Counter())[line.verdict] += 1
    return lines


@EACH_SCRIPT
def test_every_use_is_told_on_its_line_and_no_line_is_without_a_use(path):
    wanted = {(0, line): verdicts for line, verdicts in marks(path.read_text("utf-8")).items()}
    assert told(leave([path])) == wanted


@EACH_SCRIPT
def test_a_notebook_says_the_same_by_cell(path, tmp_path):
    """Each top statement of a script is a cell of its own, with text between."""
    text = path.read_text("utf-8")
    lines = text.splitlines(keepends=True)
    starts = [min(getattr(n, "decorator_list", [n]) or [n], key=_line).lineno for n in _body(text)]
    cells, wanted = [], {}
    for start, end in itertools.pairwise([*starts, len(lines) + 1]):
        block = "".join(lines[start - 1 : end - 1])
        cells.append({"cell_type": "markdown", "source": "some words"})
        cells.append({"cell_type": "code", "source": block.splitlines(keepends=True)})
        wanted |= {(len(cells), line): found for line, found in marks(block).items()}
    notebook = tmp_path / "script.ipynb"
    notebook.write_text(json.dumps({"cells": cells}), "utf-8")
    found = leave([notebook])
    assert not found.unread and told(found) == wanted


@EACH_SCRIPT
def test_what_is_not_converted_says_why_and_what_is_refused_what_to_do(path):
    for line in leave([path]).lines:
        assert line.verdict in VERDICTS and line.became
        assert line.by_hand or line.verdict != REFUSED


def test_a_script_without_the_libraries_has_no_uses(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import torch\n\n\nclass Hook:\n    def set_mode(self):\n        return self\n\n\n"
        "smp = Hook()\nsmp.set_mode()\noptimizer = torch.optim.SGD([], lr=1)\noptimizer.step()\n"
        'print("a library", torch.distributed.get_rank())\n'
    )
    assert leave([script]).lines == []


@pytest.mark.parametrize(
    "text",
    [
        "import smdistributed.modelparallel.torch as smp\nnow = smp.{}()\n",
        "from smdistributed.modelparallel.torch import {}\n",
        "import torch.sagemaker as tsm\nprint(tsm.{})\n",
        "import smppy\nwith smppy.{}():\n    pass\n",
        "from smdebug.pytorch import {}\n",
        "import torch_xla.core.xla_model as xm\nxm.{}()\n",
    ],
)
def test_what_no_table_knows_of_a_closed_library_is_refused_and_not_lost(text, tmp_path):
    script = tmp_path / "new.py"
    script.write_text(text.format("quite_new"))
    lines = leave([script]).lines
    assert any("quite_new" in line.text and line.verdict == REFUSED for line in lines)


@pytest.mark.parametrize(
    "lines",
    [
        ["import smdistributed.modelparallel.torch", "smdistributed.modelparallel.torch.rank()"],
        ["from smdistributed.modelparallel import torch as other", "other.rank()"],
        ["from smdistributed.modelparallel.torch import rank as who", "who()"],
        ["from smdistributed.modelparallel.torch import *", "rank()"],
        ["import smdistributed.modelparallel.torch as smp", "ask = smp.rank", "ask()"],
        ["import smdistributed.modelparallel.torch as smp", 'getattr(smp, "rank")()'],
        ["import smdistributed.modelparallel.torch as smp", 'print(f"on {smp.rank()}")'],
        [
            "try:",
            "    import smdistributed.modelparallel.torch as smp",
            "except ImportError:",
            "    smp = None",
            "if smp is not None and smp.rank() == 0:",
            "    print(1)",
        ],
        ["import smdistributed.modelparallel.torch as smp", "one = lambda: smp.rank()"],
        ["import smdistributed.modelparallel.torch as smp", "async def one():", "  smp.rank()"],
    ],
)
def test_a_call_is_found_by_whatever_name_it_has(lines, tmp_path):
    script = tmp_path / "names.py"
    script.write_text("\n".join(lines) + "\n")
    found = leave([script]).lines
    last = max(number for number, line in enumerate(lines, 1) if "rank" in line or "who" in line)
    assert any(line.place.line == last and "run.rank" in line.became for line in found)


def test_a_class_under_the_step_s_decorator_is_read_past(file):
    """It was an AttributeError: a class has no arguments."""
    text = "import smdistributed.modelparallel.torch as smp\n@smp.step\nclass Step:\n    pass\n"
    assert [line.place.line for line in leave([file(text, "train.py")]).lines] == [1, 2]


def test_a_value_that_turns_a_thing_off_becomes_nothing(tmp_path):
    head = "from sagemaker.pytorch import PyTorch\nPyTorch(\n    {}\n)\n"
    script = tmp_path / "job.py"
    for argument, verdict in (
        ("debugger_hook_config=False,", "left out"),
        ("debugger_hook_config=None,", "left out"),
        ("disable_profiler=True,", "left out"),
        ("disable_profiler=False,", "left out"),
        ("rules=[],", "left out"),
        ("use_spot_instances=False,", "left out"),
        ("use_spot_instances=True,", "converted"),
    ):
        script.write_text(head.format(argument))
        found = leave([script])
        [line] = [line for line in found.lines if line.place.line == 3]
        assert (argument, line.verdict, line.by_hand) == (argument, verdict, "")
        assert "watch" not in found.jobs[0].flags and "profile" not in found.jobs[0].flags


def test_the_day_on_which_the_old_one_ends_stands_beside_a_use():
    ends = {line.library: line.ends for line in leave([SCRIPTS / "debugger.py"]).lines}
    assert ends["Profiler"].startswith("2027-06-30") and ends["Debugger"].startswith("2026-07-30")


def test_a_row_that_says_nothing_is_found(monkeypatch, tmp_path):
    """A planted fault: a refusal that does not say what to do."""
    from helpers.engine.errors import UserError
    from helpers.smp.reading import catalogue as room

    folder = tmp_path / "calls"
    folder.mkdir()
    for path in room.FOLDER.iterdir():
        text = path.read_text("utf-8")
        folder.joinpath(path.name).write_text(
            text + "smp.bad,refused,no,,,,\n" * ("v1" in path.name)
        )
    monkeypatch.setattr(room, "FOLDER", folder)
    with pytest.raises(UserError, match="what to do by hand"):
        room.Catalogue()
    assert catalogue().find("smp.bad").verdict == REFUSED  # by the row for what is not known
