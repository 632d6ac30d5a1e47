"""Snippets as they are printed: they import from faces alone, and run from an engine copied under
another name, from copied helpers, and from the wheel."""

import ast
import importlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest

from tests.lab.comparison.finished_runs import write_run

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "text", "trace", "planner", "lab", "leave", "configurations")
FACES = ["helpers", *(f"helpers.{room}" for room in ROOMS)]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
TIMEOUT_S = 300
# Runs snippets one after another, as torchrun's rank would: each on a port of its own, with token
# batches under the name that the notebooks leave to the reader.
RUNNER = """
import json, os, sys
import torch

ids = torch.randint(2048, (4, 16), generator=torch.manual_seed(0))
for name, source, port in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    print("snippet", name, flush=True)
    exec(compile(source, name, "exec"), {"batches": [(ids, ids)] * 3})
"""

READER = """
import json, sys

for source in json.loads(sys.argv[1]):
    exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})
"""


def written_in(path: Path) -> list[str]:
    """The snippets of a page, or of a notebook's texts."""
    if path.suffix == ".md":
        return BLOCK.findall(path.read_text("utf-8"))
    cells = nbformat.read(path, as_version=4).cells
    return BLOCK.findall("\n".join(cell.source for cell in cells if cell.cell_type == "markdown"))


def code_in(path: Path) -> list[str]:
    if path.suffix == ".md":
        return written_in(path)
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"] + written_in(path)


SNIPPETS = {
    path.name.split("_")[0]: "\n".join(written_in(path)) for path in NOTEBOOKS if written_in(path)
}
SNIPPETS["README"] = written_in(ROOT / "README.md")[0]
SNIPPETS["engine"] = written_in(ROOT / "docs/engine.md")[0]
TRAINS = [name for name, source in SNIPPETS.items() if "Trainer(" in source]
READS = [name for name in SNIPPETS if name not in TRAINS]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.name)
def test_names_come_through_a_face(path):
    for source in code_in(path):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert not [alias for alias in node.names if alias.name.startswith("helpers.")]
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("helpers"):
                assert node.module in FACES
                rooms = [face.rpartition(".")[2] for face in FACES if node.module == "helpers"]
                known = [*importlib.import_module(node.module).__all__, *rooms]
                assert [alias.name for alias in node.names if alias.name not in known] == []


@pytest.mark.parametrize("face", FACES)
def test_a_face_has_what_it_lists(face):
    package = importlib.import_module(face)
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        getattr(package, "nothing")  # noqa: B009


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def copied(into: Path, *folders: str) -> None:
    for name in folders:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, into / Path(name).name, ignore=ignored)


def run(python: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """Started in `folder`, where nothing leads to this project."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = inherited | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)} | variables
    return subprocess.Popen(
        [python, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen) -> str:
    out, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, error
    return out


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to connections, such as those of other tests."""
    found: list[int] = []
    for port in random.sample(range(15_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports are free")


def losses_by_snippet(text: str) -> dict[str, list[float]]:
    found = {}
    for line in text.splitlines():
        if line.startswith("snippet "):
            losses = found[line.removeprefix("snippet ")] = []
        elif re.fullmatch(r"\d+\.\d+", line):
            losses.append(float(line))
    return found


def train_on_two_ranks(python: Path, folder: Path, sources: dict[str, str]) -> None:
    """Both ranks print the same losses for each snippet, and they fall."""
    (folder / "runner.py").write_text(RUNNER)
    ports = free_ports(len(sources))
    work = json.dumps([[*pair, port] for pair, port in zip(sources.items(), ports)])
    variables = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        run(python, folder, "runner.py", work, RANK=rank, LOCAL_RANK=rank, **variables)
        for rank in ("0", "1")
    ]
    first, second = [losses_by_snippet(said(rank)) for rank in ranks]
    assert first == second and list(first) == list(sources)
    for losses in first.values():
        assert len(losses) == 3 and losses[-1] < losses[0]


def plan_and_compare(python: Path, folder: Path) -> None:
    """The snippets that train nothing: they plan, compare two runs, trace, write for a
    cluster, read a script of the closed service."""
    write_run(folder / "runs/a", step_s=0.5)
    write_run(folder / "runs/b", step_s=0.25, compile_s=10.0)
    sources = json.dumps([SNIPPETS[name] for name in READS])
    told = said(run(python, folder, "-c", READER, sources))
    assert "after is 2.00 times as fast as before" in told
    assert "#SBATCH --nodes=2" in told and (folder / "runs/mine/traces/rank-0.json.gz").exists()
    assert "| smp.init | converted | run.start(config)" in told
    assert "Best by time: " in told and "\ntorchrun --standalone --nproc-per-node 8 " in told


def test_a_snippet_is_short():
    whole_scripts = ("README", "engine")
    assert all(
        len(SNIPPETS[name].split("\n")) <= 12 for name in TRAINS if name not in whole_scripts
    )
    assert len(TRAINS) == 7 and len(READS) == 5


@pytest.mark.long
@pytest.mark.slow
def test_from_an_engine_copied_under_another_name(tmp_path):
    copied(tmp_path, "helpers/engine")
    (tmp_path / "engine").rename(tmp_path / "mylib")
    (tmp_path / "helpers.py").write_text("raise ImportError('the copy reaches back')\n")
    renamed = {
        name: re.sub(r"from helpers(\.engine)? ", "from mylib ", SNIPPETS[name]) for name in TRAINS
    }
    assert "helpers" not in "".join(renamed.values())
    train_on_two_ranks(sys.executable, tmp_path, renamed)
    (tmp_path / "first.py").write_text(renamed["README"])
    alone = said(run(sys.executable, tmp_path, "first.py")).splitlines()
    launcher = "-m torch.distributed.run --standalone --local-ranks-filter 0 --nproc-per-node 2"
    rank_0 = said(run(sys.executable, tmp_path, *launcher.split(), "first.py")).splitlines()
    assert len(alone) == 3
    assert list(map(float, rank_0)) == pytest.approx(list(map(float, alone)), rel=1e-5)
    assert (tmp_path / "model/model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.slow
def test_from_copied_helpers(tmp_path):
    copied(tmp_path, "helpers", "data")
    train_on_two_ranks(sys.executable, tmp_path, {name: SNIPPETS[name] for name in TRAINS})
    plan_and_compare(sys.executable, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a wheel is built from what git knows")
def test_from_the_wheel(python_with_wheel, tmp_path):
    train_on_two_ranks(python_with_wheel, tmp_path, {name: SNIPPETS[name] for name in TRAINS})
    plan_and_compare(python_with_wheel, tmp_path)


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda path: path.name)
def test_snippets_of_the_pages_run(page, tmp_path, monkeypatch):
    """Those that start nothing; what a launch says is tested in tests/lab/launch."""
    monkeypatch.chdir(tmp_path)  # some write files
    for source in written_in(page):
        if "launch(" not in source:
            exec(source, {"__name__": "snippet"})
