"""Figures and tables as a reader meets them: picture, real table, sentence, and files on disk."""

import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.planner.cost import StateBytes

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
from helpers.lab.drawings.parallelism_map import AXES as DRAWN  # noqa: E402
from helpers.lab.drawings.parallelism_map import draw_map_of_parallelism  # noqa: E402
from helpers.lab.drawings.tensor_block import draw_tensor_parallel  # noqa: E402
from helpers.lab.figures import display as show  # noqa: E402
from helpers.lab.figures import training_plots as figures  # noqa: E402
from helpers.lab.figures.alternative_text import alternative_text  # noqa: E402
from helpers.lab.figures.charts import paired_bars, stacked_bars  # noqa: E402
from helpers.lab.figures.style import new_figure, title  # noqa: E402
from helpers.lab.notebook.results import Results  # noqa: E402
from helpers.lab.runs.run import Run, load_run  # noqa: E402
from tests.lab.comparison.finished_runs import write_speeds  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


def finished(folder: Path, speeds: list[float], **what) -> Run:
    return load_run(write_speeds(folder, speeds, **what))


@pytest.fixture
def runs(tmp_path):
    whole = {"parameters": 4000, "gradients": 4000, "optimizer": 8000}
    small = {"parameters": 1900, "gradients": 1900, "optimizer": 3800}
    large = {"parameters": 2100, "gradients": 2100, "optimizer": 4200}
    speeds = [10.0] * 2 + [1000.0] * 18
    return {
        "one process": finished(
            tmp_path / "one",
            speeds,
            losses=[5 - i / 10 for i in range(20)],
            state_bytes=[whole],
        ),
        "tp=2": finished(
            tmp_path / "two",
            [s / 2 for s in speeds],
            losses=[5 - i / 10 + 1e-6 for i in range(20)],
            state_bytes=[small, large],
        ),
    }


def text_of(fig) -> list[str]:
    from matplotlib.text import Text

    return [found.get_text() for found in fig.findobj(Text)]


def test_plot_loss_says_how_far_runs_are_apart(runs):
    fig, table, sentence = figures.plot_loss(runs)
    assert show.png(fig, "loss").startswith(PNG)
    assert list(table.index) == ["one process", "tp=2"]
    assert table.loc["tp=2", "largest difference"] == pytest.approx(1e-6, rel=1e-3)
    assert table.loc["one process", "last loss"] == pytest.approx(3.1)
    assert "from 5.000 to 3.100" in sentence and "1e-06" in sentence
    assert {"one process", "tp=2", "step", "loss"} <= set(text_of(fig))


def test_plot_loss_marks_what_happened(runs):
    fig, _, sentence = figures.plot_loss(runs, {2: "killed", 1: "resumed from"})
    assert sentence.endswith("Marked: step 1, resumed from; step 2, killed.")
    assert {"killed", "resumed from"} <= set(text_of(fig))


def test_plot_loss_of_one_run_and_of_runs_of_unequal_length(runs, tmp_path):
    _, table, sentence = figures.plot_loss({"alone": runs["tp=2"]})
    assert len(table) == 1 and "no step" not in sentence
    short = finished(tmp_path / "short", [1, 1], losses=[5.0, 4.9])
    _, table, _ = figures.plot_loss({"long": runs["one process"], "short": short})
    assert table.loc["short", "largest difference"] == pytest.approx(0)  # over the shared steps


def test_plot_loss_of_runs_that_lost_their_loss(tmp_path):
    def run(name: str, losses: list) -> Run:
        return finished(tmp_path / name, [1.0] * 3, losses=losses)

    whole, holed = run("whole", [3.0, 2.0, 1.0]), run("holed", [3.0, None, 1.0])
    gone = run("gone", [None] * 3)
    assert "goes from nan to nan" in figures.plot_loss({"gone": gone})[2]
    assert "at every step that both have" in figures.plot_loss({"whole": whole, "holed": holed})[2]
    assert "a loss at no step in common" in figures.plot_loss({"whole": whole, "gone": gone})[2]
    (tmp_path / "gone" / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has no loss"):
        figures.plot_loss({"none": load_run(tmp_path / "gone")})


def test_plot_throughput_of_a_run_without_a_speed(tmp_path):
    one, slow = finished(tmp_path / "one", [1.0]), finished(tmp_path / "slow", [math.nan])
    with pytest.raises(UserError, match="slow has no step whose speed was measured"):
        figures.plot_throughput({"one": one, "slow": slow})


def test_plot_throughput_leaves_warm_up_out(runs):
    fig, table, sentence = figures.plot_throughput(runs)
    assert table.loc["one process", "tokens/s (median)"] == 1000
    assert table.loc["tp=2", "relative to one process"] == pytest.approx(0.5)
    assert "tp=2 0.50 times" in sentence and "predicts no GPU" in sentence
    assert "1,000" in text_of(fig)


def test_plot_throughput_says_nothing_of_cpus_on_a_gpu(tmp_path):
    run = finished(tmp_path / "gpu", [5.0] * 9, device="NVIDIA H200")
    assert "CPU" not in figures.plot_throughput({"gpu": run})[2]


def test_plot_memory_takes_the_fullest_rank(runs):
    predicted = {"one process": StateBytes(4000, 4000, 8000), "tp=2": StateBytes(2000, 2000, 4000)}
    fig, table, sentence = figures.plot_memory(predicted, runs)
    assert table.loc["tp=2: parameters", "measured bytes"] == 2100
    assert table.loc["tp=2: total", "measured / predicted"] == pytest.approx(1.05)
    assert "at most 0.05 of it" in sentence and "0.525 of what one process" in sentence
    assert {"one process\npredicted", "tp=2\nmeasured", "16 kB"} <= set(text_of(fig))
    exact = {"one process": StateBytes(4000, 4000, 8000), "tp=2": StateBytes(2100, 2100, 4200)}
    assert "equal to the byte" in figures.plot_memory(exact, runs)[2]
    with pytest.raises(UserError, match="no prediction for the run 'tp=2'"):
        figures.plot_memory({"one process": predicted["one process"]}, runs)


ONE = {"parameters": 1, "gradients": 1, "optimizer": 1}


@pytest.mark.parametrize(
    "states",
    [7, {"parameters": 1}, [3], [{}], [ONE, ONE | {"optimizer": []}]]
    + [[ONE | {"optimizer": value}] for value in (None, -1, math.inf, math.nan, 10**400, True)],
)
def test_states_that_no_rank_has_are_one_line(states, tmp_path):
    run = finished(tmp_path / "run", [5.0], state_bytes=states)
    with pytest.raises(UserError, match=r"summary\.json has no list of ranks' state_bytes$"):
        figures.plot_memory({"run": StateBytes(1, 1, 1)}, {"run": run})


def test_plot_phases_adds_up_to_the_wall_clock(runs):
    _, table, sentence = figures.plot_phases(runs["tp=2"])
    assert table.loc["total", "seconds"] == pytest.approx(20)
    assert table.loc["train", "share"] == pytest.approx(0.5)
    assert table["share"].drop("total").sum() == pytest.approx(1)
    assert "compile" not in table.index  # no time was spent there
    assert "train takes 10 s: 50.0%" in sentence


@pytest.mark.parametrize("phases", [{"start": 1, "train": 99}, {"train": 99, "save": 1}])
def test_the_share_of_a_phase_is_beside_its_bar(phases):
    fig, _, _ = figures.plot_phases(phases)
    fig.canvas.draw()
    (axes,) = fig.axes
    frame = axes.get_window_extent()
    for bar, label in zip(axes.patches, axes.texts):
        words = label.get_window_extent()
        assert bar.get_window_extent().x1 <= words.x0 and words.x1 <= frame.x1


def test_plot_phases_of_plain_seconds():
    _, table, sentence = figures.plot_phases({"upload": 90, "train": 10})
    assert list(table.index) == ["upload", "train", "total"] and "10.0%" in sentence
    with pytest.raises(UserError, match="no time was spent in the phase 'train'"):
        figures.plot_phases({"upload": 90})


def test_a_plot_of_nothing_is_refused():
    with pytest.raises(UserError, match="at least one run"):
        figures.plot_loss({})


@pytest.mark.parametrize("draw", [draw_map_of_parallelism, draw_tensor_parallel])
def test_drawings_come_with_their_words(draw):
    fig, table, alt = draw()
    assert show.png(fig, alt).startswith(PNG)
    assert len(alt) > 100 and len(table) == 5


def test_the_map_names_every_axis_of_the_plan():
    from dataclasses import fields

    from helpers.engine.plan import AXES

    drawn = {axis for axis, *_ in DRAWN}
    assert set(AXES) <= drawn <= {"dp_replicate", "dp_shard", "pp", "cp", "tp"}
    assert {name.name for name in fields(StateBytes)} == set(figures.STATES)


def test_texts_of_the_drawings_do_not_overlap():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for draw in (draw_map_of_parallelism, draw_tensor_parallel):
        fig, _, _ = draw()
        FigureCanvasAgg(fig).draw()  # lays the figure out
        axes = fig.axes[0]
        boxes = [(t.get_text(), t.get_window_extent()) for t in axes.texts if t.get_text()]
        for i, (text, box) in enumerate(boxes):
            for other, other_box in boxes[:i]:
                assert not box.overlaps(other_box), f"{text!r} over {other!r}"
            assert fig.bbox.contains(box.x0, box.y0) and fig.bbox.contains(box.x1, box.y1), text


def test_the_picture_is_the_same_each_time_and_carries_its_words():
    first, second = (show.png(draw_tensor_parallel()[0], "words") for _ in range(2))
    assert first == second
    assert b"Description\x00words" in first


def test_a_dollar_sign_in_a_name_is_no_formula():
    fig, axes = new_figure()
    axes.plot([0, 1], [0, 1], label="$_{$")
    axes.set_xticks([0, 1], ["$\\nope$", "$$^"])
    axes.legend()
    title(axes, "2 $ and $_ an hour")
    assert show.png(fig, "words").startswith(b"\x89PNG")


AWKWARD = pd.DataFrame(
    {
        "bytes <b>": [1234567, 0],
        "share": [0.123456, float("nan")],
        "ok": [True, False],
        "note": ["a & b", "é"],
    },
    index=pd.Index(["row <1>", "row 2"], name="run"),
)


def test_html_table_is_a_real_table():
    root = ElementTree.fromstring(show.table_html(AWKWARD, "Bytes & shares"))
    assert root.tag == "table" and root.find("caption").text == "Bytes & shares"
    heads = root.findall("thead/tr/th")
    assert [th.text for th in heads] == ["run", "bytes <b>", "share", "ok", "note"]
    assert {th.get("scope") for th in heads} == {"col"}
    rows = root.findall("tbody/tr")
    assert [row.find("th").get("scope") for row in rows] == ["row", "row"]
    assert [td.text for td in rows[0].findall("td")] == ["1,234,567", "0.1235", "yes", "a & b"]
    assert [td.text for td in rows[1].findall("td")] == ["0", "–", "no", "é"]


def test_a_column_and_its_head_stand_on_one_side():
    mixed = AWKWARD.assign(mixed=["words", 3])
    root = ElementTree.fromstring(show.table_html(mixed, "Sides"))
    rows = [root.findall("thead/tr/th")[1:], *(r.findall("td") for r in root.findall("tbody/tr"))]
    sides = [[cell.get("style").removeprefix("text-align:") for cell in row] for row in rows]
    assert sides == [["right", "right", "right", "left", "right"]] * 3


def test_two_dollar_signs_are_no_formula():
    html = show.table_html(AWKWARD, "$1 or $2")
    assert "<span>$</span>1 or <span>$</span>2" in html


def test_text_table_is_aligned():
    lines = show.table_text(AWKWARD, "Caption").splitlines()
    assert lines[0] == "Caption" and lines[3].startswith("-------")
    column = lines[2].index("share") + len("share")
    assert lines[4][:column].endswith("0.1235") and lines[5][:column].endswith("–")


def test_outside_a_notebook_the_words_are_printed(capsys):
    fig, _ = new_figure()
    show.show_figure(fig, "what is seen", AWKWARD, "What it means.")
    printed = capsys.readouterr().out
    assert printed.index("what is seen") < printed.index("1,234,567") < printed.index("What it")


def test_a_plot_says_its_panels_axes_rows_and_series():
    fig, axes = new_figure()
    axes.plot([1, 2], label="one process")
    axes.plot([2, 3], label="tp=2")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    title(axes, "Training loss")
    words = "Lines: Training loss, loss against step. Series: one process, tp=2. It rises."
    assert alternative_text(fig, "It rises.") == words
    fig, axes = new_figure()
    axes.barh(["slow\nrank", "fast rank"], [2, 1])
    axes.set_xlabel("seconds")
    assert alternative_text(fig) == "Bars: seconds. Rows: slow rank, fast rank."


def test_results_are_shown_and_kept_in_one_call(tmp_path, capsys):
    results = Results(1, tmp_path / "r")
    fig, axes = new_figure()
    axes.plot([1, 2])
    assert results.figure("loss", fig, AWKWARD, "It falls.") is AWKWARD
    assert results.drawing("idea", fig, AWKWARD, "a drawing") is AWKWARD
    results.table("bill", AWKWARD, "What it cost")
    kept = [f"{name}.{kind}" for name in ("idea", "loss") for kind in ("csv", "png", "txt")]
    assert sorted(p.name for p in Path(results).iterdir()) == ["bill.csv", "bill.txt", *kept]
    printed = capsys.readouterr().out
    assert "Lines:" in printed and "a drawing" in printed and "What it cost" in printed
    assert results.new("run") == f"{tmp_path}/r/run"
    (tmp_path / "r" / "run").mkdir()
    assert results.new("run") == f"{tmp_path}/r/run-2"
    for given in (Results(3), Results(3, None)):
        assert re.fullmatch(r"runs/notebook-3-\d{8}-\d{6}(-\d+)?", str(given))


@pytest.mark.parametrize("name", ["loss", "loss.png"])
def test_files_left_on_disk(tmp_path, name):
    fig, _ = new_figure()
    show.show_figure(fig, "alt", AWKWARD, "What it means.", save_to=tmp_path / "sub" / name)
    folder = tmp_path / "sub"
    assert sorted(p.name for p in folder.iterdir()) == ["loss.csv", "loss.png", "loss.txt"]
    assert (folder / "loss.png").read_bytes().startswith(PNG)
    raw = pd.read_csv(folder / "loss.csv", index_col="run")
    assert raw.loc["row <1>", "share"] == 0.123456  # not rounded
    assert (folder / "loss.txt").read_text().rstrip().endswith("What it means.")


def test_show_table_leaves_no_picture(tmp_path, capsys):
    show.show_table(AWKWARD, "Caption", save_to=tmp_path / "t")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.txt"]
    assert "Caption" in capsys.readouterr().out


@pytest.mark.parametrize("bars", [stacked_bars, paired_bars])
def test_bars_of_nothing_have_an_axis(bars):
    """Both of its ends were 0, of which matplotlib warned."""
    _, axes = new_figure(grid="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bars(axes, pd.DataFrame({"one": [0.0, 0.0], "other": [0.0, 0.0]}, index=["a", "b"]))
    assert axes.get_xlim()[1] > 0


CELL = """
import pandas as pd
from helpers.lab.figures.display import show_figure
from helpers.lab.figures.style import new_figure
fig, axes = new_figure()
axes.plot([1, 2])
table = pd.DataFrame({"y": [1, 2]}, index=pd.Index([0, 1], name="x"))
show_figure(fig, "a rising line", table, "It rises.")
"""


@pytest.mark.slow
def test_in_a_notebook_each_part_is_an_output():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    from helpers.lab.paths import ROOT

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(
        notebook, kernel_name="python3", resources={"metadata": {"path": ROOT}}
    ).execute()
    picture, table, sentence = notebook.cells[0].outputs
    assert "image/png" not in picture.data and picture.data["text/plain"] == "a rising line"
    shown = picture.data["text/html"]
    assert shown.startswith('<img alt="a rising line" width="576" src="data:image/png;base64,')
    assert table.data["text/html"].startswith("<table><caption")
    assert "The numbers in the figure" in table.data["text/plain"]
    assert sentence.data["text/plain"] == "It rises."
