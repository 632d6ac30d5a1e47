"""Every name that a rewritten script reads means something, or the script is not written."""

import ast
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.leave.writing import written
from helpers.smp.leaving import leave
from helpers.smp.rewriting.undefined import binds, first_read, undefined

V1 = "import smdistributed.modelparallel.torch as smp\n"


@pytest.fixture
def write(file):
    def writing(text, name="helper.py"):
        files = written(leave([file(text, name)]))
        return files.get(name, ""), files.get(f"{name}.reasons", "")

    return writing


def executed(text):
    """The module that a text makes."""
    names = {"__name__": "helper"}
    exec(compile(text, "helper.py", "exec"), names)
    return names


@pytest.mark.parametrize("name", ["FusedLayerNorm", "LayerNorm"])
def test_a_class_of_the_library_keeps_the_name_that_the_script_uses(name, write):
    alias = "" if name == "FusedLayerNorm" else f" as {name}"
    text, _ = write(
        f"from smdistributed.modelparallel.torch.nn import FusedLayerNorm{alias}\n"
        f"def is_norm(module):\n    return isinstance(module, {name})\n"
    )
    import torch

    made = executed(text)
    assert made["is_norm"](torch.nn.LayerNorm(2)) and not made["is_norm"](None)
    assert undefined(text) == set()


V2 = {
    "a logger at the top": (
        "import os\nfrom torch.sagemaker.logger import get_logger\n\n_logger = get_logger()\n"
    ),
    "what raises where it is reached": (
        "import torch\nfrom torch.sagemaker.logger import get_logger\n\n"
        "def layer():\n  from torch.sagemaker.moe.moe_layer import MoELayer\n  return MoELayer\n"
    ),
    "a backend, without an import of torch": (
        '"""Arguments."""\n\nfrom __future__ import annotations\n\nimport argparse\n\n'
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--backend", default="smddp", choices=["smddp", "nccl"])\n'
    ),
    "torch itself by the library alone": (
        "import torch.sagemaker\n\ndef seed():\n    torch.manual_seed(0)\n"
        "    return torch.sagemaker.state.tp_rank\n"
    ),
    "a use right below the imports": V1 + 'smp.init({"ddp": True})\n',
    "a use ahead of an import": V1 + "rank = smp.rank\nimport json\n",
    "a use ahead of the library's import": (
        f"import os\ndef rank():\n    return smp.rank()\nif rank is None:\n    rank()\n{V1}"
    ),
    "a decorated function first": (
        "@property\ndef rank(self):\n    return torch.sagemaker.state.tp_rank\n"
        "import torch.sagemaker\n"
    ),
}


@pytest.mark.parametrize("text", V2.values(), ids=V2)
def test_what_replacements_read_is_imported(text, write):
    text, reasons = write(text)
    assert text and not reasons and undefined(text) == set()
    ast.parse(text)
    made = executed(text.replace("run.start(", "print("))
    assert "parser" not in made or made["parser"].parse_args([]).backend in ("nccl", "gloo")
    assert isinstance(made.get("_logger", logging.getLogger()), logging.Logger)


def test_the_choices_of_a_backend_are_words(write):
    line = 'add("--backend", choices={0})\n'
    for before, after in (
        ('["smddp", "nccl"]', '["gloo", "nccl"]'),
        ('("smddp",)', '("nccl", "gloo",)'),
        ('["nccl", "smddp", "gloo"]', '["nccl", "nccl", "gloo"]'),
    ):
        assert write(line.format(before))[0] == line.format(after)


def test_a_name_that_another_branch_gives_keeps_what_that_one_gave(write):
    """Each use of it was replaced, whatever it held."""
    text, _ = write(
        "def layer(ours):\n    if ours:\n"
        "        from torch.sagemaker.tensor_parallel.transformer import TransformerLayer\n"
        "        found = TransformerLayer\n    else:\n        found = int\n    return found\n"
    )
    layer = executed(text)["layer"]
    assert layer(False) is int
    with pytest.raises(Exception, match="line 4, TransformerLayer"):
        layer(True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import torch.sagemaker as tsm\ntsm.state.tensor_parallel_degree = 1\n",
         "line 2: tsm.state.tensor_parallel_degree is set, and nothing here can be set"),
        ("from torch.sagemaker import state\ndef name():\n    return f'tp{state.tp_rank}'\n",
         "line 3: state.tp_rank stands in an f-string"),
        ("import torch.sagemaker as tsm\ntsm.checkpoint.utils.SORT_BY_LAST_INT\n",
         "line 2: tsm.checkpoint.utils.SORT_BY_LAST_INT is reached by every run"),
        ("import smdebug.pytorch as smd\nhook = smd.Hook('.')\nsaved = hook.save_scalar('a', 1)\n"
         "print(saved)\n", "line 4: saved would be undefined"),
        ("from smdistributed.modelparallel.torch.nn import *\nprint(FusedLayerNorm)\n",
         "line 2: FusedLayerNorm would be undefined"),
    ],
)  # fmt: skip
def test_what_is_not_written_says_why_on_the_script_s_own_line(text, reason, write):
    after, reasons = write(text)
    assert not after and reason in reasons and len(reasons.splitlines()) == 1


def test_what_a_line_does_twice_is_replaced_twice(write):
    text, _ = write(f"{V1}def last():\n    return smp.rank() + 1 == smp.size() or not smp.rank()\n")
    assert "return run.rank() + 1 == run.size() or not run.rank()" in text


def test_what_the_script_itself_leaves_undefined_is_its_own_affair(write):
    text, _ = write(f"{V1}def f():\n    return missing, smp.rank()\n")
    assert "return missing, run.rank()" in text


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_undefined_names_are_those_that_python_does_not_find(bound, read):
    lines = [f"{name} = 0" for name in sorted(bound)]
    lines += ["def work(x, *, y=len):", "    global g", "    g = [x for x in (y, __file__)]"]
    lines += [f"    {name}" for name in sorted(read)]
    text = "\n".join(lines)
    assert undefined(text) == read - bound and not undefined(f"{text}\ng\n") & {"g"}
    assert binds(text, "y") and binds(text, "g") and not binds(text, "len")
    tree = ast.parse(text)
    assert all(first_read(tree, name) for name in read) and first_read(tree, "z") == 0
