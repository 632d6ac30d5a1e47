"""Notebooks in a browser, as `scripts/lab` shows them: run, pictures, links, sliders."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.browser import browser, find_browser

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK, SLIDERS_END = "6_plan_at_scale.ipynb", "calibrate"  # the cell after its last slider
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*_*.ipynb"))
BY_DEFAULT = ("0",)  # to its end; all with --exhaustive
RUN_S, START_S = 900, 90
# JavaScript: the notebook, its last cell of code, what its cells raised
PANEL = "[...window.jupyterapp.shell.widgets('main')].find(one => one.content?.widgets)"
LAST = f"{PANEL}.content.widgets.filter(cell => cell.model.type === 'code').at(-1).model"
ERRORS = (
    f"{PANEL}.content.model.toJSON().cells.flatMap(cell => cell.outputs || [])"
    ".filter(output => output.output_type === 'error').map(output => output.evalue)"
)
STDERR = (
    f"{PANEL}.content.model.toJSON().cells.flatMap(cell => cell.outputs || [])"
    ".filter(output => output.name === 'stderr').map(output => output.text)"
)
# what papermill does with `-p steps 4`; .ci/run runs notebooks with their own numbers of steps
FEW_STEPS = (
    f"(cell => cell.setSource(cell.getSource() + '\\nsteps = 4'))({PANEL}.content.widgets"
    ".find(cell => cell.model.id === 'parameters').model.sharedModel)"
)
PICTURES = f"[...{PANEL}.node.querySelectorAll('.jp-OutputArea img')]"
# what the page's own links answer, but for those that do
BROKEN = (
    f"Promise.all([...{PANEL}.node.querySelectorAll('a[href]')].map(one => one.href)"
    ".filter(href => href.startsWith(location.origin) && !href.includes('#'))"
    ".map(href => fetch(href).then(answer => [href, answer.status])))"
    ".then(found => found.filter(([_, status]) => status !== 200))"
)
WIDGET, OUTPUT = ".jupyter-widgets", ".jp-RenderedHTML"


def missing() -> str:
    """What the test lacks, in words; nothing where it can run."""
    if find_browser() is None:
        return "no Chromium on the PATH: install chromium"
    for module in ("jupyterlab", "ipywidgets", "websocket"):
        if find_spec(module) is None:
            return f"no {module}: pip install 'helpers[notebooks]'"
    return ""


skipped = pytest.mark.skipif(bool(missing()), reason=missing())
pytestmark = [pytest.mark.slow, pytest.mark.long, skipped]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a notebook, by its name, in a JupyterLab that `scripts/lab` started. It saves
    nothing, for the notebooks are the committed ones."""
    folder = tmp_path_factory.mktemp("lab")
    saving = folder / "settings" / "@jupyterlab" / "docmanager-extension"
    saving.mkdir(parents=True)
    (saving / "plugin.jupyterlab-settings").write_text('{"autosave": false}')
    settings = {
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_DATA_DIR": folder / "data-dir",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
    }
    env = os.environ | {name: str(path) for name, path in settings.items()}
    env |= {"CUDA_VISIBLE_DEVICES": ""}
    flags = ["--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1"]
    flags += ["--LabApp.expose_app_in_browser=True"]
    log = folder / "lab.log"
    with log.open("w") as stream:
        server = subprocess.Popen(
            ["bash", ROOT / "scripts" / "lab", *flags],
            env=env,
            cwd=folder,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    before = [(ROOT / "notebooks" / name).read_bytes() for name in NOTEBOOKS]
    try:
        yield address(log, server)
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert [(ROOT / "notebooks" / name).read_bytes() for name in NOTEBOOKS] == before


def address(log: Path, server: subprocess.Popen) -> Callable[[str], str]:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)", log.read_text())
        if found:
            start = f"http://127.0.0.1:{found[1]}/lab/tree/notebooks/"
            # reset: else JupyterLab opens again what an earlier page left open, in the first place
            return lambda name: f"{start}{name}?token={found[2]}&reset"
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not start: {log.read_text()[-1000:]}")


@pytest.fixture(scope="module")
def page(lab, tmp_path_factory):
    """Notebook 6, run up to what it measures."""
    with browser(find_browser(), tmp_path_factory.mktemp("browser")) as found:
        clear_all(found, lab(NOTEBOOK))
        found.evaluate(f"void ({PANEL}.content.activeCellIndex = {place_of(SLIDERS_END)})")
        run(found, "notebook:run-all-above")
        above = f"{PANEL}.content.widgets.slice(0, {place_of(SLIDERS_END)})"
        above += ".filter(cell => cell.model.type === 'code').at(-1).model"
        found.until(f"{above}.executionCount > 0 || {ERRORS}.length > 0", RUN_S)
        show_all(found)
        yield found


def run_all(page, address: str) -> None:
    """Open a notebook, without its stored outputs, and run it to its end."""
    clear_all(page, address)
    page.evaluate(FEW_STEPS)
    run(page, "notebook:run-all-cells")
    page.until(f"{LAST}.executionCount > 0 || {ERRORS}.length > 0", RUN_S)
    show_all(page)


def clear_all(page, address: str) -> None:
    page.open(address)
    page.until(f"Boolean(window.jupyterapp && {PANEL}?.content.widgets.length > 10)")
    page.until(f"{PANEL}.sessionContext.session?.kernel?.status === 'idle'")
    # given again until it is heard: a notebook that has just opened may not be the current one yet
    clear = "window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')"
    page.until(f"(void {clear}, {LAST}.executionCount === null)")


def show_all(page) -> None:
    """JupyterLab draws a cell when it comes into view."""
    page.evaluate(
        f"void {PANEL}.content.widgets.forEach((one, i) => {PANEL}.content.scrollToItem(i))"
    )


def run(page, command: str) -> None:
    """One of JupyterLab's commands, without waiting for its end."""
    page.evaluate(f"void window.jupyterapp.commands.execute({json.dumps(command)})")


def place_of(cell: str) -> str:
    """JavaScript for the number of the cell that has this id."""
    return f"{PANEL}.content.widgets.findIndex(cell => cell.model.id === {json.dumps(cell)})"


def test_every_cell_up_to_there_runs(page):
    assert page.evaluate(ERRORS) == []


def test_every_picture_of_the_page_has_alternative_text(page):
    page.until(f"{PICTURES}.length > 3")
    assert page.evaluate(f"{PICTURES}.every(one => one.alt.length > 40 && one.naturalWidth > 0)")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.split("_")[0] in BY_DEFAULT else pytest.mark.exhaustive)
        for name in NOTEBOOKS
    ],
)
def test_a_notebook_runs_to_its_end(lab, tmp_path, name):
    with browser(find_browser(), tmp_path) as page:
        run_all(page, lab(name))
        assert page.evaluate(ERRORS) == []
        assert page.evaluate(STDERR) == []
        page.until(f"{PICTURES}.length > 0")
        assert page.evaluate(f"{PICTURES}.every(one => one.alt.length > 40)")
        assert page.evaluate(BROKEN) == []


@pytest.mark.parametrize("path", ["helpers/engine/plan.py", "docs/planner.md", "runs"])
def test_what_notebooks_link_to_can_be_opened(page, path):
    found = page.evaluate(
        f"window.jupyterapp.serviceManager.contents.get({json.dumps(path)}, {{content: false}})"
        ".then(model => model.type)"
    )
    assert found in ("file", "directory")


@pytest.mark.parametrize(("name", "slider"), [("calculator", "seq_len"), ("explorer", "tp")])
def test_a_moved_slider_changes_the_table_and_not_the_first_one(page, name, slider):
    place = place_of(name)
    page.evaluate(f"void ({PANEL}.content.activeCellIndex = {place})")
    page.evaluate(f"void {PANEL}.content.scrollToItem({place})")
    node = f"{PANEL}.content.widgets[{place}].node"
    moving, still = (f"{node}.querySelector('{kind} table')" for kind in (WIDGET, OUTPUT))
    page.until(f"Boolean({moving})")
    before, first = read(page, moving), read(page, still)
    assert before == first
    handle = f"{node}.querySelectorAll('.widget-slider')].find(one => one.textContent.includes("
    page.evaluate(f"[...{handle}{json.dumps(slider)})).querySelector('.noUi-handle').focus()")
    page.press("ArrowRight", 39)
    page.until(f"{moving}.caption.textContent !== {json.dumps(before[0])}")
    after = read(page, moving)
    assert setting(after[0], slider) != setting(before[0], slider)
    assert after[1] != before[1] and read(page, still) == first


def read(page, table: str) -> tuple[str, list[str]]:
    """The caption of a table, and the text of its cells."""
    caption = page.evaluate(f"{table}.caption.textContent")
    return caption, page.evaluate(f"[...{table}.querySelectorAll('td')].map(c => c.textContent)")


def setting(caption: str, slider: str) -> str:
    """What a caption says that a slider stands at."""
    return re.search(rf"\b{slider} (\w+)", caption)[1]
