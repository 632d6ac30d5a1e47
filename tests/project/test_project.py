"""The rules of the house: one list of packages, who imports whom, documents that hold."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("data/**/*.md"), *ROOT.glob("docs/**/*.md")]
    if "runs" not in path.parts
)


# --- packages --------------------------------------------------------------------------------


def pyproject_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


def conda_pip_list() -> list[str]:
    lines = (ROOT / "environment.yml").read_text("utf-8").splitlines()
    return [line.strip() for line in lines[lines.index("  - pip:") + 1 :]]


def test_conda_installs_the_list_of_pyproject():
    entries = [line[2:] for line in conda_pip_list() if line.startswith("- ")]
    assert entries.pop() == "-e ."
    conda = {one.name: one.specifier for one in map(Requirement, entries)}
    project = {one.name: one.specifier for one in pyproject_requirements()}
    (pinned,) = conda.pop("torch")
    assert pinned.operator == "=="
    assert project.pop("torch").contains(pinned.version)
    assert conda == project


def test_every_package_of_the_conda_list_says_what_uses_it():
    lines = conda_pip_list()[:-1]
    assert all(line.startswith("# ") for line in lines[0::2])
    assert all(line.startswith("- ") for line in lines[1::2])


def test_conda_brings_python_alone():
    text = (ROOT / "environment.yml").read_text("utf-8")
    assert re.findall(r"^  - (.*)$", text, re.MULTILINE) == [
        "conda-forge",
        "nodefaults",
        "python=3.11",
        "pip",
        "pip:",
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_range(python):
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                assert pin.name not in pins
                (pins[pin.name],) = (one.version for one in pin.specifier)
    for requirement in pyproject_requirements():
        assert requirement.specifier.contains(pins[requirement.name]), requirement.name
    conda = (ROOT / "environment.yml").read_text("utf-8")
    assert f"torch=={pins['torch']}" in conda


def test_the_environment_that_runs_the_tests_is_the_pinned_kind():
    for requirement in pyproject_requirements():
        installed = Version(metadata.version(requirement.name))
        assert requirement.specifier.contains(installed.public), requirement.name


# --- who imports whom ------------------------------------------------------------------------

MAY_IMPORT = {
    "engine": ("helpers.engine",),
    "planner": ("helpers.engine", "helpers.planner"),
    "lab": ("helpers.engine", "helpers.planner", "helpers.lab"),
}
MODULES = sorted((ROOT / "helpers").rglob("*.py"))


def imports(path: Path, tree: ast.AST) -> Iterator[str]:
    """Absolute names of all modules that `tree` imports, at any depth."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from helpers import lab` imports helpers.lab
            yield from (f"{name}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module) -> ast.Module:
    """The statements that run when the module is imported: no functions, no type checking."""

    class Remover(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return None

        visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

        def visit_If(self, node):
            is_typing = ast.unparse(node.test).endswith("TYPE_CHECKING")
            return None if is_typing else self.generic_visit(node)

    return Remover().visit(tree)


def is_under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_the_rooms_below_them(path):
    room = path.relative_to(ROOT).parts[1]
    tree = ast.parse(path.read_text("utf-8"))
    if room == "__init__.py":
        tree = at_import_time(tree)
    allowed = MAY_IMPORT.get(room, ())
    inside = [name for name in imports(path, tree) if is_under(name, ("helpers",))]
    assert [name for name in inside if not is_under(name, allowed)] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "helpers/engine").rglob("*.py")), ids=lambda path: path.name
)
def test_the_engine_needs_torch_alone_at_import(path):
    tree = at_import_time(ast.parse(path.read_text("utf-8")))
    allowed = ("torch", "helpers.engine", *sys.stdlib_module_names)
    assert [name for name in imports(path, tree) if not is_under(name, allowed)] == []


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


# --- documents -------------------------------------------------------------------------------


def commands(path: Path) -> list[str]:
    """The lines of a document's shell blocks, comments and continuations resolved."""
    blocks = re.findall(
        r"```(?:bash|sh|shell|console)\n(.*?)```", path.read_text("utf-8"), re.DOTALL
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.strip() and line[0] != "#"]


def test_the_readme_is_there_with_its_commands():
    shown = commands(ROOT / "README.md")
    assert any(line.startswith("bash scripts/run") for line in shown)
    assert any(line.startswith("bash scripts/test") for line in shown)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_scripts_named_in_a_document_exist(path):
    text = path.read_text("utf-8")
    named = set(
        re.findall(r"(?<![\w/.-])((?:scripts|\.ci|tests|helpers|notebooks)/[\w/.-]*\w)", text)
    )
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_flags_of_the_training_script_in_documents_exist():
    shown = [line for path in DOCUMENTS for line in commands(path) if "scripts/train.py" in line]
    if not shown:
        pytest.skip("no document shows it yet")
    help_text = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = set(re.findall(r"--[a-z][\w-]*", help_text))
    used = {flag for line in shown for flag in re.findall(r"--[a-z][\w-]*", after_script(line))}
    assert used - known == set()


def after_script(line: str) -> str:
    return line.split("scripts/train.py", 1)[1]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text)
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not link_resolves(path, target)] == []


def link_resolves(path: Path, target: str) -> bool:
    file, _, anchor = target.partition("#")
    found = (path.parent / file) if file else path
    if not found.exists():
        return False
    if not anchor or found.suffix != ".md":
        return True
    headings = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
