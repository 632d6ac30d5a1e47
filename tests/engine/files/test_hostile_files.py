"""Files that want to run code: none of it runs, and one line says what was refused.

Each payload would make a folder, whose absence is the proof.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

pytest.importorskip("transformers")
from helpers.configurations.report import given
from helpers.engine.errors import UserError, named_reason, reason
from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.files.manifest import (
    MANIFEST,
    METADATA,
    changed_settings,
    read_manifest,
    sha256,
    write_manifest,
)
from helpers.engine.files.metadata_reader import CheckedReader, read_metadata
from helpers.engine.files.weight_files import WeightFiles, stored_names
from helpers.engine.models.configurations import check_model, code_left, load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab.runs.run import load_run
from helpers.planner.measure.calibrate import load_cluster
from helpers.text.readers import load_examples
from helpers.text.tokenizer import load_tokenizer
from tests.engine.files.test_checkpoint import save_steps, trainer_of
from tests.support.ranks import pool
from tests.support.refusals import said

ROOT = Path(__file__).resolve().parents[3]


class Payload:
    """A pickle of it makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def mended(checkpoint: Path, **facts) -> None:
    """The manifest again over what now lies in the folder, as whoever planted it would do."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    del manifest["sha256"]
    found = [path for path in checkpoint.iterdir() if path.name != MANIFEST]
    manifest["files"] = {path.name: sha256(path) for path in found}
    write_manifest(checkpoint, manifest | facts)


def refused(checkpoint: Path) -> str:
    trainer = trainer_of("gptj", ParallelPlan())
    return said(Checkpoints(checkpoint.parent).load, trainer, checkpoint)


def steps_of(checkpoint: Path) -> int:
    trainer = trainer_of("gptj", ParallelPlan())
    Checkpoints(checkpoint.parent).load(trainer, checkpoint)
    return trainer.steps_done


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    pool(1).run(save_steps, folder, 1, 1)
    (found,) = folder.glob("step-*")
    return found


@pytest.fixture
def checkpoint(whole, tmp_path) -> Path:
    """To be spoiled."""
    return shutil.copytree(whole, tmp_path / "run" / whole.name)


def test_metadata_of_every_kind_of_tensor_is_read(checkpoint):
    files = json.loads((checkpoint / MANIFEST).read_text())["files"]
    ours, torchs = CheckedReader(checkpoint, files), dcp.FileSystemReader(checkpoint)
    one, other = ours.read_metadata(), torchs.read_metadata()
    assert one.state_dict_metadata == other.state_dict_metadata
    assert one.storage_data == other.storage_data


def test_a_payload_in_the_metadata_is_not_run(checkpoint, tmp_path):
    made = tmp_path / "made"
    (checkpoint / METADATA).write_bytes(pickle.dumps(Payload(made)))
    mended(checkpoint)
    (words,) = pool(1).run(refused, checkpoint)
    assert f"{METADATA} is refused: it names posix.mkdir, no part of a checkpoint" in words
    assert not made.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (BytesStorageMetadata(), "is refused: it names"),  # torch would unpickle the value itself
        (getattr, "is refused: it names builtins.getattr"),
        (torch.nn.Linear, "is refused: it names torch.nn"),
        (torch.load, "is refused: it names torch"),
    ],
)
def test_what_is_no_place_of_a_tensor_is_refused(tmp_path, value, words):
    path = tmp_path / METADATA
    path.write_bytes(pickle.dumps(Metadata({"weight": value}, storage_data={})))
    with pytest.raises(UserError, match=words):
        read_metadata(path)


@pytest.mark.parametrize("content", [b"", b"\x80", b"cos\nsystem", pickle.dumps([1]), b"x" * 99])
def test_broken_metadata_is_one_line(tmp_path, content):
    path = tmp_path / METADATA
    path.write_bytes(content)
    assert str(path) in said(read_metadata, path)


@pytest.mark.parametrize(
    "facts",
    [
        {"step": "1"},
        {"step": True},
        {"step": -1},
        {"step": None},
        {"step": 10**400},
        {"plan": []},
        {"plan": {}},
        {"scaler": {"scale": "x"}},
        {"scaler": {"scale": 10**400}},
        {"scaler": None},
        {"fixed": [1]},
        {"settings": 5},
        {"fewer_updates": {"x": None}},
    ],
    ids=lambda facts: str(facts)[:40],
)
def test_a_manifest_of_other_kinds_is_one_line(checkpoint, facts):
    mended(checkpoint, **facts)
    words = said(read_manifest, checkpoint, {})
    assert f"{MANIFEST} is damaged: its {next(iter(facts))} is none; there is no" in words


def test_what_an_earlier_version_did_not_write_may_be_none(checkpoint):
    mended(checkpoint, fewer_updates=None, settings=None)
    assert pool(1).run(steps_of, checkpoint) == [1]
    assert changed_settings(read_manifest(checkpoint, {}), {"lr": 1}) == []


@pytest.mark.parametrize("content", ["", "[]", "[1]", "5", "null"])
def test_a_manifest_that_is_no_object_is_one_line(tmp_path, content):
    (tmp_path / MANIFEST).write_text(content)
    assert f"has no readable {MANIFEST}" in said(read_manifest, tmp_path, {})


def garbage(path: Path) -> None:
    path.write_bytes(b"x" * 99)


def streams_of_another_kind(path: Path) -> None:
    torch.save({"cpu": [1, 2]}, path)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("__0_0.distcp", garbage),
        ("rank-0.pt", garbage),
        ("rank-0.pt", streams_of_another_kind),
    ],
)
def test_files_of_other_kinds_are_one_line(checkpoint, name, spoil):
    spoil(checkpoint / name)
    mended(checkpoint)
    (words,) = pool(1).run(refused, checkpoint)
    assert words.startswith(str(checkpoint)) and len(words.splitlines()) == 1


def test_a_tensor_lies_in_no_file_but_the_checkpoints(checkpoint):
    files = json.loads((checkpoint / MANIFEST).read_text())["files"]
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    for index, info in metadata.storage_data.items():
        metadata.storage_data[index] = type(info)("../secret", info.offset, info.length)
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UserError, match=r"names \.\./secret, which is no file of the checkpoint"):
        CheckedReader(checkpoint, files).read_metadata()


def test_a_file_that_the_manifest_does_not_name_is_refused(checkpoint):
    (checkpoint / "more.distcp").write_bytes(b"")
    (words,) = pool(1).run(refused, checkpoint)
    assert "holds more.distcp, which its manifest.json does not name" in words


@pytest.mark.parametrize("files", [{}, None, [], {"rank-0.pt": ""}])
def test_a_manifest_that_names_too_little_is_refused(checkpoint, files):
    mended(checkpoint, files=files)
    assert "names no .metadata" in said(read_manifest, checkpoint, {})


CODE = """
import os
from transformers import PreTrainedConfig
os.mkdir({made!r})
class Planted(PreTrainedConfig):
    model_type = "planted"
"""
ASK = """
import sys
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
try:
    load_config(sys.argv[1])
except UserError as error:
    print(error)
"""


def model_folder(tmp_path: Path, **fields) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_the_code_of_a_model_folder_is_not_run_whatever_standard_input_says(tmp_path):
    made = tmp_path / "made"
    auto_map = {"AutoConfig": "planted.Planted"}
    folder = model_folder(tmp_path, model_type="planted", auto_map=auto_map)
    (folder / "planted.py").write_text(CODE.format(made=str(made)))
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(folder)],
        input="yes\n" * 9,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert asked.returncode == 0, asked.stderr
    assert "it comes with code of its own (planted.Planted), which is never run" in asked.stdout
    assert len(asked.stdout.splitlines()) == 1 and not made.exists()


def test_the_model_code_of_a_known_configuration_is_not_run(tmp_path):
    made = tmp_path / "made"
    auto_map = {"AutoModelForCausalLM": "planted.GPT2lmheadModel"}  # a type that was taken over
    folder = model_folder(tmp_path, model_type="gpt2", auto_map=auto_map, n_embd=64, n_head=4)
    (folder / "planted.py").write_text(CODE.format(made=str(made)))
    config = load_config(folder)
    check_model(config)  # transformers' own GPT-2
    assert not made.exists()
    assert code_left(config) == "planted.GPT2lmheadModel"
    assert code_left(load_config("gptj-tiny")) == ""


def test_another_model_than_its_code_is_for_is_not_made_of_a_known_configuration(tmp_path):
    made = tmp_path / "made"
    auto_map = {"AutoModelForCausalLM": "planted.Model"}
    folder = model_folder(tmp_path, model_type="gpt2", auto_map=auto_map, n_embd=64, n_head=4)
    (folder / "planted.py").write_text(CODE.format(made=str(made)))
    with pytest.raises(UserError, match=r"code of its own \(planted.Model\), which is never run"):
        load_config(folder)
    assert not made.exists()


def test_the_code_of_a_tokenizer_is_not_run(tmp_path):
    made = tmp_path / "made"
    folder = model_folder(tmp_path, model_type="gpt2")
    shutil.copy(ROOT / "data" / "tokenizer" / "tokenizer.json", folder)
    told = {"tokenizer_class": "Planted", "auto_map": {"AutoTokenizer": ["planted.Planted", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "planted.py").write_text(CODE.format(made=str(made)))
    assert load_tokenizer(folder).vocab_size == 2048
    assert not made.exists()


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_attention_from_a_hub_is_refused(tmp_path, field):
    folder = model_folder(tmp_path, model_type="gpt2", **{field: "someone/attention"})
    with pytest.raises(UserError, match=r"attention code from a hub \(someone/attention\)"):
        load_config(folder)


@pytest.mark.parametrize("layers", ["2", 1.5, True])
def test_layers_are_a_whole_number_by_their_other_name_too(tmp_path, layers):
    folder = model_folder(tmp_path, model_type="gptj", num_hidden_layers=layers)
    with pytest.raises(UserError, match=r"has num_hidden_layers .* must be a whole number"):
        load_config(folder)


@pytest.mark.parametrize("layers", [0, -3, 10**9])
def test_layers_that_no_model_has_are_refused(tmp_path, layers):
    folder = model_folder(tmp_path, model_type="gpt2", n_layer=layers)
    with pytest.raises(UserError, match=f"has num_hidden_layers {layers}: from 1 to 10000"):
        load_config(folder)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("", "is no index of weights"),
        ("[]", "is no index of weights"),
        ("5", "is no index of weights"),
        ("{}", "is no index of weights"),
        ("[" * 100_000, "is no index of weights"),
        ('{"weight_map": null}', "is no index of weights"),
        ('{"weight_map": ["a"]}', "is no index of weights"),
        ('{"weight_map": {"a": 5}}', "is no index of weights"),
        ('{"weight_map": {"a": null}}', "is no index of weights"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "no file of that folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "names '/etc/passwd', no file of that folder"),
        ('{"weight_map": {"a": ""}}', "names '', no file of that folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "lacks gone.safetensors"),
        ('{"weight_map": {"a": "%s"}}' % ("x" * 5000), "lacks xxx"),
        ('{"weight_map": {"a": "a\\u0000b"}}', "lacks a"),
    ],
)
def test_an_index_of_weights_is_checked(tmp_path, index, words):
    folder = model_folder(tmp_path, model_type="gpt2")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match=words):
        WeightFiles.find(str(folder))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (3, "holds no weights by name but int"),
        ([torch.ones(2)], "holds no weights by name but list"),
        ({"a": 3}, "holds 'a', which is no dense tensor"),
        ({3: torch.ones(2)}, "holds 3, which is no dense tensor"),
        ({"a": {"b": torch.ones(2)}}, "holds 'a', which is no dense tensor"),
        ({"a": torch.eye(3).to_sparse()}, "holds 'a', which is no dense tensor"),
        ({"a": torch.ones(2, device="meta")}, "holds 'a', which is no dense tensor"),
    ],
)
def test_a_pickle_of_weights_holds_dense_tensors_by_name(tmp_path, content, words):
    folder = model_folder(tmp_path, model_type="gpt2")
    torch.save(content, folder / "pytorch_model.bin")
    assert words in said(WeightFiles.find, str(folder))


READERS = (load_config, WeightFiles.find, load_tokenizer, pick, load_run, given, load_cluster)
READERS += (partial(load_examples, task="lm"), partial(load_examples, task="classify"))


@pytest.mark.parametrize("reader", READERS)
def test_what_the_system_does_not_let_one_look_at_is_one_line(tmp_path, reader):
    """As inside a folder that may not be entered, which root may: a link that leads to itself."""
    (tmp_path / "loop").symlink_to("loop")
    assert " cannot be read: " in said(reader, tmp_path / "loop" / "x.txt")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_cannot_be_opened_are_one_line_with_the_systems_reason(tmp_path, name):
    """safetensors says of every such file that it is not there."""
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name} cannot be read: Is a directory"):
        stored_names(tmp_path / name)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("", "is no JSON object"),
        ("[]", "is no JSON object"),
        ("5", "is no JSON object"),
        ("null", "is no JSON object"),
        ("[" * 100_000, "is no JSON object"),
        ('{"eos_token": 5}', "eos_token is 5, and must be text"),
        ('{"eos_token": ["</s>"]}', "and must be text"),
        ('{"eos_token": {"content": 5}}', "eos_token is 5, and must be text"),
        ('{"eos_token": {}}', "eos_token has to be either str or AddedToken"),
    ],
)
def test_what_a_tokenizer_says_of_itself_is_checked(tmp_path, told, words):
    shutil.copy(ROOT / "data" / "tokenizer" / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(told)
    with pytest.raises(UserError, match=words):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("told", ["{}", '{"eos_token": null}'])
def test_a_tokenizer_may_leave_its_end_unsaid(tmp_path, told):
    shutil.copy(ROOT / "data" / "tokenizer" / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(told)
    assert load_tokenizer(tmp_path).vocab_size > 0


@pytest.mark.parametrize("words", ["", " ", "\n", "first\nsecond", "\nfirst\nsecond"])
def test_an_error_has_a_first_line_even_without_words(words: str) -> None:
    first = words.strip().partition("\n")[0]
    assert reason(OSError(words)) == (first or "OSError")
    assert named_reason(OSError(words)).startswith(f"OSError: {first}")
