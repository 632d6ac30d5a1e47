"""Documents that hold: what they name exists, their links resolve."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("data/**/*.md"), *ROOT.glob("docs/**/*.md")]
    if "runs" not in path.parts
)

TRAINING = re.compile(r"(?:scripts/train\.py|-m helpers\.train) (.*)")


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
    lines = [line for path in DOCUMENTS for line in commands(path)]
    shown = [found[1] for found in map(TRAINING.search, lines) if found]
    assert len(shown) > 1
    helped = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train.py"), "--help"],
        capture_output=True,
        text=True,
    )
    assert helped.returncode == 0, helped.stderr
    known = set(re.findall(r"--[a-z][\w-]*", helped.stdout))
    used = {flag for words in shown for flag in re.findall(r"--[a-z][\w-]*", words)}
    assert used - known == set()


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
