"""Scripts with their calls replaced: whole, or not at all with the reason."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.leave.writing import written
from helpers.smp.leaving import leave
from helpers.smp.rewriting.edits import Edit, Text

PUBLISHED = Path(__file__).parents[3] / "data/leaving"
SCRIPTS = Path(__file__).parents[1] / "scripts"
CLOSED = r"smdistributed|smdebug|smppy|torch_xla|torch\.sagemaker"
IMPORTED = re.compile(rf"^\s*(?:import|from)\s+(?:{CLOSED})\b", re.MULTILINE)
HEAD = """import smdistributed.modelparallel.torch as smp
import torch


@smp.step
def train_step(model, ids):
    loss = model(input_ids=ids, labels=ids).loss
    model.backward(loss)
    return loss


smp.init({"ddp": True})
"""


def write(tmp_path, text, *others):
    path = tmp_path / "train.py"
    path.write_text(text)
    return written(leave([path, *others]))


@pytest.mark.parametrize("text", [HEAD, f"{HEAD}smp.set_state_dict(x)\n"])
def test_of_two_scripts_of_one_name_none_is_lost(text, tmp_path):
    paths = [tmp_path / "a" / "train.py", tmp_path / "b" / "train.py"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(text)
    with pytest.raises(UserError, match=r"^train\.py would be written twice: give scripts of one"):
        written(leave(paths))


@pytest.mark.parametrize("name", ["gptj_tensor", "gptj_pipeline", "compiler"])
def test_a_published_script_is_rewritten_whole_and_its_diff_fits(name, tmp_path):
    script = PUBLISHED / f"{name}.py"
    before = script.read_text("utf-8")
    found = leave([script, PUBLISHED / f"{name}_job.py"])
    files = written(found)
    text = files[script.name]
    ast.parse(text)
    assert script.read_text("utf-8") == before  # never in place
    assert not re.search(r"smdistributed|(?<!helpers\.)\bsmp\.|torch_xla|\bxm\.", text)
    copy = tmp_path / script.name
    copy.write_text(before)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", "-p1", "--directory", tmp_path, "-"],
        input=files[f"{script.name}.diff"],
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert copy.read_text() == text


def test_the_words_that_take_a_call_s_place(tmp_path):
    text = write(
        tmp_path,
        HEAD + "torch.cuda.set_device(smp.local_rank())\ndevice = torch.device('cuda', 0)\n"
        "model = smp.DistributedModel(torch.nn.Linear(2, 2))\n"
        "optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))\n"
        "loss = train_step(model, torch.ones(1)).reduce_mean()\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
        "if smp.rdp_rank() == 0 and smp.dp_rank() == 0:\n    smp.barrier(smp.DP_GROUP)\n",
    )["train.py"]
    for line in (
        "from helpers.smp.running import Session",
        "run = Session()",
        'run.start({"ddp": True})',
        "    loss = run.backward(input_ids=ids, labels=ids).loss",
        "device = run.device",
        "model = run.model(torch.nn.Linear(2, 2))",
        "optimizer = run.optimizer(torch.optim.AdamW(model.parameters()))",
        "loss = train_step(model, torch.ones(1))",
        "optimizer.clip_master_grads(0.5)",
        "if run.rdp_rank() == 0 and run.dp_rank() == 0:",
        '    run.barrier("dp")',
    ):
        assert line in text.splitlines()
    assert "set_device" not in text and "@smp" not in text


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("import smdebug.tensorflow as smd\nsmd.KerasHook('x')\n", "TensorFlow"),
        ("run_it = [smp.is_initialized]\n", "handed on"),
        ("def run():\n    smp.barrier()\n", "a name run of its own"),
        ("smp.never_heard_of(1)\n", "line 13: smp.never_heard_of is reached by every run"),
        ("torch.nn.utils.clip_grad_value_([], 1.0)\n", "gradients are the engine's"),
    ],
)
def test_what_cannot_be_replaced_is_a_reason_and_no_script(more, reason, tmp_path):
    files = write(tmp_path, HEAD + more)
    assert list(files) == ["train.py.reasons"] and reason in files["train.py.reasons"]


def test_a_step_whose_loss_is_not_the_model_s_own_is_not_rewritten(tmp_path):
    own = HEAD.replace("model(input_ids=ids, labels=ids).loss", "model(ids).logits.sum()")
    assert "its loss is not the model's own" in write(tmp_path, own)["train.py.reasons"]


def test_a_configuration_of_the_job_alone_needs_its_notebook(tmp_path):
    bare = HEAD.replace('smp.init({"ddp": True})', "smp.init()")
    assert "give the notebook" in write(tmp_path, bare)["train.py.reasons"]
    job = tmp_path / "job.py"
    job.write_text(
        "from sagemaker.pytorch import PyTorch\nPyTorch(entry_point='train.py', "
        "instance_type='ml.p4d.24xlarge', instance_count=1, distribution={'smdistributed': "
        "{'modelparallel': {'enabled': True, 'parameters': {'ddp': True, 'partitions': 2}}}})\n"
    )
    text = write(tmp_path, bare, job)["train.py"]
    assert "run.start(given={'ddp': True, 'partitions': 2})" in text


def test_what_is_refused_raises_where_it_is_reached(tmp_path):
    text = write(tmp_path, HEAD + "if False:\n    smp.never_heard_of(1)\n")["train.py"]
    assert "run.by_hand(" in text


def test_scripts_of_one_project_share_a_session(tmp_path):
    other = tmp_path / "util.py"
    other.write_text("import smdistributed.modelparallel.torch as smp\nprint(smp.rank())\n")
    files = write(tmp_path, HEAD, other)
    assert "run = Session()" in files["leaving_run.py"]
    assert "from leaving_run import run" in files["util.py"]
    assert "from leaving_run import run" in files["train.py"]


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_is_python_without_the_library_or_there_are_reasons(path):
    for name, text in written(leave([path])).items():
        if name.endswith(".py"):
            ast.parse(text)
            assert not IMPORTED.search(text)
        elif name.endswith(".reasons"):
            assert text.strip()


@given(st.text("aé\n", max_size=30), st.data())
@settings(deadline=None)
def test_edits_that_do_not_touch_are_the_same_in_any_order(text, data):
    size = len(text.encode())
    ends = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    edits = [Edit(a, b, f"<{a}>") for a, b in zip(ends[::2], ends[1::2])]
    got = Text(text)
    try:
        after = got.applied(data.draw(st.permutations(edits)))
    except UnicodeDecodeError:  # an edit that cuts a letter in two is nobody's
        return
    left = text.encode()
    for edit in reversed(edits):
        left = left[: edit.start] + edit.text.encode() + left[edit.end :]
    assert after == left.decode()


def test_edits_that_overlap_are_an_error():
    with pytest.raises(ValueError, match="overlap"):
        Text("abcdef").applied([Edit(0, 3, "x"), Edit(2, 5, "y")])
