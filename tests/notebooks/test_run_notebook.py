"""scripts/notebooks/execute.py, on notebooks made for the test, with a real kernel."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("papermill")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "scripts/notebooks/execute.py"

PARAMETERS = 'out: str = "runs/demo"  # results\nsteps: int = 5  # steps to run'
RESULTS = """
from pathlib import Path
folder = Path("..", out)  # a kernel starts in notebooks/
(folder / "throughput.txt").write_text(f"ranks  steps\\n1      {steps!r}\\n")
(folder / "memory.csv").write_text("rank,bytes\\n0,10\\n")
(folder / "loss.png").write_bytes(b"a picture")
"""
FAILING = "def inner():\n    raise RuntimeError('rank 1 is gone')\n\ninner()"


def write_notebook(path: Path, *cells: str, parameters: str = PARAMETERS) -> None:
    tagged = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(
        cells=[tagged, *map(nbformat.v4.new_code_cell, cells)],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.write(notebook, path)


@pytest.fixture
def run(tmp_path):
    """A project with two notebooks and the script; call it with the script's arguments."""
    (tmp_path / "scripts" / "notebooks").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / SCRIPT, tmp_path / SCRIPT)
    write_notebook(tmp_path / "notebooks" / "1_good.ipynb", RESULTS)
    write_notebook(tmp_path / "notebooks" / "2_bad.ipynb", "print('before')", FAILING)

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(tmp_path / SCRIPT), *arguments],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=120,
        )

    return call


def test_it_shows_the_tables_and_the_paths_of_the_figures(run, tmp_path):
    done = run("-p", "steps", "7")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"notebook-1-\d{8}-\d{6}", folder.name)
    assert "throughput\nranks  steps\n1      7" in done.stdout
    assert re.search(r"memory\n +rank +bytes\n +0 +10\n", done.stdout)
    assert f"figures\n  runs/{folder.name}/loss.png" in done.stdout
    executed = nbformat.read(folder / "1_good.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")


def test_a_failing_cell_fails_the_command_and_shows_why(run):
    done = run("2")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "RuntimeError: rank 1 is gone" in lines
    assert lines[-1] == "run: 2_bad failed in cell [4]: RuntimeError"
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["9"], "run: there is no notebook 9; the notebooks are: 1_good, 2_bad"),
        (
            ["1", "-p", "step", "3"],
            "run: 1_good has no parameter step; its parameters are: out, steps",
        ),
        (
            ["1", "-p", "out", "5"],
            'run: out is 5: give a value of type str, as its default "runs/demo" is',
        ),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(run, tmp_path, arguments, line):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [line]
    assert not (tmp_path / "runs").exists()
