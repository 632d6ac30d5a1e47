"""The house: rooms small enough to see, imports that go one way, an engine that can be copied."""

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
MOST_ENTRIES = 14
MOST_AXES = 19  # in the engine: a room for each axis and idea
rooms = script("docs/rooms")
GRAPH = rooms.room_imports()
FOLDERS = sorted(
    folder
    for top in ("helpers", "scripts", "tests")
    for folder in [ROOT / top, *(ROOT / top).rglob("*/")]
    if "__pycache__" not in folder.parts
)
MODULES = sorted((ROOT / "helpers").rglob("*.py"))
# from the ground up: a top folder imports itself and those before it
ORDER = ("engine", "commands", "tables", "entries", "text", "trace", "watch", "planner", "smp")
ORDER += ("train", "lab", "leave", "configurations")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_is_small_enough_to_see(folder):
    names = [path.name for path in folder.iterdir() if path.name != "__pycache__"]
    most = MOST_AXES if folder.name == "engine" else MOST_ENTRIES
    assert len(names) <= most, sorted(names)


def test_rooms_import_each_other_one_way():
    order = [room for level in rooms.levels(GRAPH) for room in level]  # raises for a circle
    assert sorted(order) == sorted(GRAPH)


def test_a_circle_would_be_found():
    with pytest.raises(ValueError, match="circle"):
        rooms.levels({**GRAPH, "engine/errors": {"engine/trainer"}})


@pytest.mark.parametrize("room", sorted(GRAPH))
def test_top_folders_import_only_those_below_them(room):
    allowed = ORDER[: ORDER.index(room.split("/")[0]) + 1]
    above = [other for other in GRAPH[room] if other.split("/")[0] not in allowed]
    assert above == []


def test_the_drawing_is_that_of_the_code():
    assert rooms.PICTURE.read_text("utf-8") == rooms.draw(GRAPH)


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.name == "__init__.py"],
    ids=lambda path: path.parent.name,
)
def test_every_room_says_what_is_in_it(path):
    """A docstring that names each file of the room, or the face's rooms."""
    words = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert words and 3 <= len(words.splitlines()) <= 22
    if not any((child / "__init__.py").exists() for child in path.parent.iterdir()):
        code = [child.name for child in path.parent.glob("*.py") if child.name[0] != "_"]
        assert [name for name in code if name not in words] == []


def test_the_engine_is_copied_under_any_name():
    """It imports itself by relative imports alone, and no absolute name of its own."""
    for path in (ROOT / "helpers/engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("helpers") for alias in node.names), path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert not node.module.startswith("helpers"), path


def at_import_time(tree: ast.Module) -> ast.Module:
    """The statements that run when the module is imported: no functions."""

    class Remover(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return None

        visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    return Remover().visit(tree)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "helpers/engine").rglob("*.py")), ids=lambda path: path.name
)
def test_the_engine_needs_torch_alone_at_import(path):
    allowed = {"torch", *sys.stdlib_module_names}
    for node in ast.walk(at_import_time(ast.parse(path.read_text("utf-8")))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert {name.split(".")[0] for name in names} <= allowed


IMPORT_WITH_TORCH_ALONE = """
import importlib, importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
for name in NAMES:
    importlib.import_module(name)
print(len(NAMES))
"""


def test_the_engine_imports_where_only_torch_is_installed():
    kept = requirement_closure("torch") | {"helpers"}
    blocked = {
        name
        for name, owners in metadata.packages_distributions().items()
        if not {normal(owner) for owner in owners} & kept
    }
    assert {"transformers", "numpy", "pandas", "tokenizers", "safetensors"} <= blocked
    engine = sorted((ROOT / "helpers" / "engine").rglob("*.py"))
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in engine
    ]
    code = f"BLOCKED = {blocked!r}\nNAMES = {names!r}\n{IMPORT_WITH_TORCH_ALONE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(engine)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_closure(name: str) -> set[str]:
    """The distributions that installing `name` installs here."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = normal(waiting.pop())
        if one in found:
            continue
        try:
            requirements = metadata.requires(one) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(one)
        parsed = map(Requirement, requirements)
        waiting += [
            each.name
            for each in parsed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def test_no_file_hides_the_name_that_it_is_called_after():
    faces = [
        ".".join(path.relative_to(ROOT).parent.parts)
        for path in MODULES
        if path.name == "__init__.py" and "HOMES" in path.read_text("utf-8")
    ]
    code = f"""
from importlib import import_module
from types import ModuleType
for face in {faces}:
    for name in import_module(face).HOMES:
        exec(f"from {{face}} import {{name}} as found")
        if isinstance(found, ModuleType):
            print(face, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
