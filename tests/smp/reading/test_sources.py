"""What cannot be read is refused in one line, before anything is said of it."""

import json
import os

import pytest

from helpers.engine.errors import UserError
from helpers.smp.leaving import leave
from helpers.smp.reading.sources import read_source


def notebook(*cells, **facts):
    """Cells of code, as JSON."""
    rows = [{"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"cells": rows, "nbformat": 4, **facts})


NONSENSE = [
    ("a.py", b"\x7fELF\x02\x01\x01\x00\xff\xfe\x80", "no text in the encoding"),
    ("a.py", b"x = 1\x00\n", "no Python"),
    ("a.py", b"dear reader, this is a letter\n", "no Python that Python 3"),
    ("a.py", b"print 'loss', loss\n", "Python 2"),
    ("a.py", b"try:\n    pass\nexcept Error, e:\n    pass\n", "Python 2"),
    ("a.py", b"# -*- coding: no-such-code -*-\n", "no text in the encoding"),
    ("a.py", b"type X[T = int] = list[T]\ntemplate = t'{x}'\n", "no Python that Python 3"),
    ("a.py", b"x = 1\n" * 2_000_000, "12 MB: no script"),
    ("a.py", b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "no Python"),
    ("a.py", b"x = " + b"-" * 3000 + b"1\n", "no Python|nested too deeply"),
    ("a.py", b"x = a" + b".b" * 20_000 + b"\n", "no Python|nested too deeply"),
    ("a.ipynb", b"not JSON", "is no notebook"),
    ("a.ipynb", b"[]", "no list of cells"),
    ("a.ipynb", b'{"cells": {}}', "no list of cells"),
    ("a.ipynb", b'{"cells": [1]}', "no list of cells"),
    ("a.ipynb", b'{"worksheets": []}', "format 3"),
    ("a.ipynb", b"[" * 100_000, "is no notebook"),
    ("a.ipynb", notebook().encode(), "no cells with code"),
    ("a.ipynb", notebook("", "  \n").encode(), "no cells with code"),
    ("a.ipynb", notebook("print 1").encode(), "cell 1.*Python 2"),
    ("a.ipynb", notebook("x = 1\n" * 1_000_000).encode(), "more than 4 MB of code"),
    ("a.ipynb", notebook("x", metadata={"kernelspec": {"language": "R"}}).encode(), "of r, and"),
    ("a.txt", b"", "no script"),
    ("a.yaml", b"\x00\x01", "no YAML"),
]


@pytest.mark.parametrize(("name", "data", "words"), NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_refused_in_one_line(name, data, words, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=words) as refused:
        leave([path])
    text = str(refused.value)
    assert len(text.splitlines()) == 1 and len(text) < 400
    assert str(path) in text or "deeply" in text


def test_a_folder_and_a_file_that_is_not_there(tmp_path):
    folder = tmp_path / "folder.py"
    folder.mkdir()
    for path, words in ((folder, "directory"), (tmp_path / "none.py", "No such file")):
        with pytest.raises(UserError, match=words):
            leave([path])


def test_a_notebook_s_lines_keep_their_cells_whatever_stands_between(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [
        "%load_ext autoreload\n!pip install smdebug\nimport os",
        "%%bash\nls smp\n",
        "%%time\nimport smdebug.pytorch as smd",
        "files = !ls\nif files:\n    %cd ..\nlast = smd.get_hook()",
        "%%writefile code/train.py\nimport smppy\nsmppy.annotate('x')",
        "this is no Python",
        "smd.get_hook?",
    ]
    path.write_text(notebook(*cells))
    found = leave([path])
    places = [(line.place.cell, line.place.line) for line in found.lines]
    assert places == [(1, 2), (3, 2), (4, 4), (5, 2), (5, 3)]
    [(place, why)] = found.unread
    assert place.cell == 6 and "no Python" in why


@pytest.mark.parametrize("separator", ["\u2028", "\x0c", "\x1c"])
def test_a_line_of_a_cell_ends_where_python_ends_it(separator, file):
    """Elsewhere its string was cut in two, and the cell was no Python."""
    cell = (
        f"words = 'one{separator}two'\nfrom sagemaker.pytorch import PyTorch\n"
        "PyTorch(entry_point='t.py', instance_type='ml.p4d.24xlarge', instance_count=1)"
    )
    found = leave([file(notebook(cell), "a.ipynb")])
    [job] = found.jobs
    assert not found.unread and (job.place.cell, job.place.line) == (1, 3)


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_of_a_cell_end_in_any_way(end, file):
    [line] = leave([file(notebook(f"x = 1{end}import smppy"), "a.ipynb")]).lines
    assert (line.place.cell, line.place.line) == (1, 2)


def test_a_script_in_another_encoding_keeps_its_columns(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes("# coding: latin-1\r\nname = 'Jürgen'; import smppy\r\n".encode("latin-1"))
    [line] = leave([path]).lines
    assert line.place.line == 2
    assert read_source(path).programs[0].text.count("\n") == 2


def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "train.py"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"train\.py cannot be read: it is a pipe$"):
        read_source(pipe)
