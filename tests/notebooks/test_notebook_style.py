"""What every committed notebook keeps to, and that its outputs are those of its source."""

import ast
import base64
import html
import io
import json
import re
import shutil
import tokenize
from pathlib import Path

import nbformat
import pytest

from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.figures.what_if_sliders import WIDGET
from helpers.lab.notebook.record import source_hash
from helpers.lab.notebook.run_profile import PROFILES
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(
    (ROOT / "notebooks").glob("*.ipynb"), key=lambda path: int(path.name.split("_")[0])
)
render = script("notebooks/render")

PICTURE = re.compile(r'<img alt="([^"]+)" width="\d+" src="data:image/png;base64,([^"]+)">')
MOST_BYTES, MOST_LINES, MOST_WORDS, MOST_HELPERS = 500_000, 25, 150, 4
OPENING = ("Before you start", "Parameters", "Preflight", "The idea", "Predict a number")
CLOSING = (
    "Exercises",
    "If something goes wrong",
    "Key points",
    "Take it to your project",
    "References",
    "Record",
)
HEADINGS = {
    "0": (
        "Before you start",
        "Parameters",
        "Is this machine ready?",
        *OPENING[2:],
        "Where the time went, and the money",
        "The notebooks",
        "If something goes wrong",
        "Key points",
        "References",
        "Record",
    ),
    "lesson": (
        *OPENING,
        "What the calculator says",
        "What changes",
        "The same answer?",
        "Memory",
        "Throughput and cost",
        "Where the time went",
        "Prediction against measurement",
        "Break it on purpose",
        *CLOSING,
    ),
    "6": (
        *OPENING,
        "What the calculator says",
        "The published claims",
        "Where near-linear ends",
        "Shards inside a node",
        "Long sequences",
        "Which layout",
        "Prediction against measurement",
        "Break it on purpose",
        *CLOSING,
    ),
    "7": (
        *OPENING,
        "The five cases",
        "What a mend can gain",
        "The mends",
        "The same answer?",
        "Prediction against measurement",
        "Break it on purpose",
        "What the closed service had",
        *CLOSING,
    ),
    "8": (
        *OPENING,
        "What the calculator says",
        "Two nodes over a link",
        "The same answer?",
        "One dies",
        "Prediction against measurement",
        "Break it on purpose",
        "On a real cluster",
        "Slurm itself",
        *CLOSING,
    ),
    "9": (
        *OPENING,
        "What the calculator says",
        "By hand",
        "Baseline: one process",
        "What changes",
        "The same answer?",
        "Four wrong ways",
        "Balance",
        "Memory",
        "Throughput and cost",
        "Prediction against measurement",
        "Which one for a budget",
        "Break it on purpose",
        *CLOSING,
    ),
    "10": (
        *OPENING,
        "What the calculator says",
        "Every call",
        "Mistakes",
        "As runs",
        "What changes",
        "The same answer?",
        "All five, small",
        "Prediction against measurement",
        "Break it on purpose",
        "What has no replacement",
        *CLOSING,
    ),
}
BANNED = re.compile(
    r"^\s*[!%]|\bsubprocess\b|\bos\.(system|popen|exec\w*|chdir)\b|get_ipython|%%|\binput\("
    r"|\bipywidgets\b|\btqdm\b",
    re.MULTILINE,
)
HERE = re.compile(r"(?<![\w.~:/-])/(home|Users|root|work|tmp|usr|opt|var|private|mnt)/")
PUBLISHED = "/tmp/.cache"  # of a published job's own setting, which notebook 10 shows
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)|<img\b([^>]*)>")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def number(path: Path) -> str:
    return path.name.split("_")[0]


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(notebook, tag: str) -> list:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def prose(notebook) -> list[str]:
    """Markdown without what stands in code fences."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in cells]


def texts(output) -> list[str]:
    """All that an output shows as text."""
    if output.output_type == "stream":
        return [output.text]
    return [str(v) for key, v in output.get("data", {}).items() if not key.startswith("image/")]


def test_there_are_notebooks_and_each_has_its_number():
    numbers = [int(number(path)) for path in NOTEBOOKS]
    assert numbers[0] == 0 and numbers == sorted(set(numbers)) == list(PROFILES)


def test_it_is_a_valid_and_small_file_for_any_python3_kernel(path, notebook):
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert path.stat().st_size <= MOST_BYTES
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "source_sha256"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}, cell.id


def test_it_opens_with_its_title_outcome_and_needs(notebook):
    ones = [line for text in prose(notebook) for line in text.splitlines() if line[:2] == "# "]
    first = notebook.cells[0]
    assert len(ones) == 1 and first.source.startswith("# ")
    (outcome,) = [line for line in first.source.splitlines() if line.startswith("> ")]
    assert outcome.endswith(".") and ". " not in outcome
    assert all(f"| {word} " in first.source for word in ("time", "GPUs", "download", "cost"))


def test_its_headings_are_there_in_order(path, notebook):
    lines = [line for text in prose(notebook) for line in text.splitlines()]
    found = [line[3:] for line in lines if line.startswith("## ")]
    wanted = HEADINGS.get(number(path), HEADINGS["lesson"])
    assert [heading for heading in found if heading in wanted] == list(wanted)


def test_its_minutes_are_the_same_wherever_they_are_told(path, notebook):
    row = rf"^\| \[?{number(path)}[. ].*$"
    overview = "\n".join(prose(nbformat.read(NOTEBOOKS[0], as_version=4)))
    readme = (ROOT / "README.md").read_text("utf-8")
    head = re.search(r"(\d+) minutes?", notebook.cells[0].source)[1]
    for text in (overview, readme):
        (told,) = re.findall(row, text, re.MULTILINE)
        assert re.findall(r"(\d+) minutes?", told) == [head], told


def test_the_idea_is_short_and_drawn(notebook):
    index = next(i for i, c in enumerate(notebook.cells) if c.source.startswith("## The idea"))
    words = notebook.cells[index].source.removeprefix("## The idea").split()
    assert len(words) <= MOST_WORDS
    outputs = notebook.cells[index + 1].outputs
    assert any(PICTURE.match(html_of(output)) for output in outputs)


def test_its_parameters_are_literals_with_a_type_and_a_help(path, notebook):
    papermill = pytest.importorskip("papermill")
    (cell,) = tagged(notebook, "parameters")
    for statement in ast.parse(cell.source).body:
        assert isinstance(statement, ast.AnnAssign), ast.unparse(statement)
        ast.literal_eval(statement.value)
    found = papermill.inspect_notebook(str(path))
    assert {"profile", "steps", "seed", "price_per_hour", "out"} <= set(found)
    for one in found.values():
        assert one["inferred_type_name"] != "None" and one["help"], one["name"]


def test_no_cell_is_long_or_calls_a_shell(notebook):
    for cell in code_cells(notebook):
        ast.parse(cell.source, feature_version=(3, 10))
        assert len(cell.source.splitlines()) <= MOST_LINES, cell.id
        assert not BANNED.search(cell.source), cell.id
        imported = [
            alias.name
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "helpers"
            for alias in node.names
        ]
        assert len(imported) <= MOST_HELPERS, cell.id


@pytest.mark.parametrize("path", NOTEBOOKS[1:3], ids=lambda path: path.stem)
def test_predicted_state_is_in_the_precision_of_the_profile(path):
    """On GPUs it has 16 bits, and the state of a parameter is larger."""
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if "*plot_memory(" in c.source)
    calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    predicted = [call for call in calls if ast.unparse(call.func) == "cost.state_bytes"]
    assert predicted and all(ast.unparse(call.args[1]) == "chosen.state" for call in predicted)


def test_no_cell_leans_on_the_last_output(notebook):
    """`_` holds it in a kernel, and something else after a cell is run twice."""
    for cell in code_cells(notebook):
        tokens = tokenize.generate_tokens(io.StringIO(cell.source).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
        assert not names & {"_", "__", "Out", "In"}, cell.id


def test_images_have_alternative_text_and_exist(path, notebook):
    for text in prose(notebook):
        for words, target, attributes in IMAGE.findall(text):
            assert words or 'alt="' in attributes
            if target and not target.startswith("http"):
                assert (path.parent / target).is_file(), target
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert "image/png" not in output.get("data", {}), cell.id  # a page shows no alt of it
            for alt, data in PICTURE.findall(html_of(output)):
                alt = html.unescape(alt)
                assert len(alt) > 40 and output.data["text/plain"] == alt, cell.id
                assert base64.b64decode(data).startswith(b"\x89PNG"), cell.id


def test_every_picture_of_the_exported_page_has_alternative_text(path):
    nbconvert = pytest.importorskip("nbconvert")
    page, _ = nbconvert.HTMLExporter().from_filename(str(path))
    pictures = re.findall(r"<img [^>]*>", page)
    assert pictures and all(re.search(r'alt="[^"]{40,}"', one) for one in pictures)


def test_links_and_files_that_it_names_exist(path, notebook):
    for text in prose(notebook):
        for target in LINK.findall(text):
            file = target.split("#")[0]
            if file and not re.match(r"[a-z]+:", file):
                assert (path.parent / file).exists(), target
    everything = "\n".join(cell.source for cell in notebook.cells)
    named = re.findall(r"(?<![\w/.-])((?:scripts|helpers|data|tests)/[\w/.-]*\w)", everything)
    assert [name for name in sorted(set(named)) if not (ROOT / name).exists()] == []


def test_no_cell_shows_a_value_that_it_only_left_over(notebook):
    """What a cell ends with is displayed: a name on purpose, the result of a call by chance."""
    for cell in code_cells(notebook):
        if "execute_result" in [output.output_type for output in cell.outputs]:
            assert isinstance(ast.parse(cell.source).body[-1].value, ast.Name), cell.id


def test_every_cell_ran_once_from_the_top_without_error(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.get("text")


def test_its_outputs_are_whole_and_name_no_machine(notebook):
    assert "widgets" not in notebook.metadata
    assert not any(
        WIDGET in output.get("data", {}) for c in code_cells(notebook) for output in c.outputs
    )
    for cell in code_cells(notebook):
        for text in (text for output in cell.outputs for text in texts(output)):
            assert "0%|" not in text and "Output()" not in text and "<Figure size" not in text
            found = HERE.search(text.replace(PUBLISHED, ""))
            assert not found, f"{cell.id}: {found}"


def test_its_outputs_say_where_they_come_from(notebook):
    (cell,) = tagged(notebook, "rendered")
    assert notebook.cells[1] is cell
    assert "profile `tiny`" in cell.source and "illustrative" in cell.source
    assert re.search(r"torch \d+\.\d+\.\d+, rendered on \d{4}-\d\d-\d\d", cell.source)


def test_its_outputs_are_those_of_its_source(path):
    assert render.out_of_date(path) == "", "run: python scripts/notebooks/render.py"


def test_each_of_its_exercises_has_a_stub(path, notebook):
    stubs = "\n".join(cell.source for cell in tagged(notebook, "exercise"))
    wanted = [name for name, one in EXERCISES.items() if one.lesson == number(path)]
    assert re.findall(r'check\("([^"]+)"', stubs) == wanted


def html_of(output) -> str:
    return output.get("data", {}).get("text/html", "")


@pytest.fixture
def copied(tmp_path) -> Path:
    return Path(shutil.copy(NOTEBOOKS[0], tmp_path))


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    change(notebook["cells"])
    path.write_text(json.dumps(notebook), "utf-8")


def test_an_edited_cell_is_noticed(copied):
    before = source_hash(copied)
    edit(copied, lambda cells: cells[-1]["source"].append("\n# one more line"))
    assert source_hash(copied) != before
    assert "source has changed" in render.out_of_date(copied)


def test_a_cell_that_was_not_run_is_noticed(copied):
    edit(copied, lambda cells: cells[-1].update(execution_count=None))
    assert "has not been executed" in render.out_of_date(copied)


def test_the_label_and_the_outputs_are_no_source(copied):
    before = source_hash(copied)
    edit(copied, lambda cells: cells[1].update(source=["another day"]))
    edit(copied, lambda cells: cells[-1].update(outputs=[]))
    assert source_hash(copied) == before
