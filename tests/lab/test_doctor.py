"""The doctor: each line's verdict and next step, and the whole thing as a reader starts it."""

import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from helpers.lab import doctor as module
from helpers.lab.doctor import ready_for
from helpers.lab.machine import report
from helpers.lab.machine.hardware import Device, Machine, find_machine
from helpers.lab.machine.installed_versions import (
    NEEDED,
    installed_version,
    needed,
    requirements,
    wanted_python,
    within,
)
from helpers.lab.machine.report import FAIL, OK, WARN, Line, Report
from helpers.lab.notebook.run_profile import PROFILES
from helpers.lab.paths import ROOT
from helpers.text import bundled
from tests.support.scripts import on_a_full_disk


def machine(gpus=0, cores=8, memory_gb=32.0, disk_gb=100.0) -> Machine:
    devices = tuple(Device("NVIDIA A100-SXM4-40GB", 42 * 10**9) for _ in range(gpus))
    return Machine(devices, cores, int(memory_gb * 1e9), int(disk_gb * 1e9))


def verdicts(lines) -> dict[str, str]:
    return {line.name: line.verdict for line in lines}


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("2.13.0+cpu", ">=2.11,<3", True),
        ("2.10.1", ">=2.11,<3", False),
        ("3.0.0", ">=2.11,<3", False),
        ("3.0", "<3", False),
        ("2.11", ">=2.11", True),
        ("2.11.0rc1", ">=2.11", True),
        ("10.0", ">=9", True),
        ("1.2.0", "==1.2", True),
    ],
)
def test_within(version, wanted, expected):
    assert within(version, wanted) is expected


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")
def test_requirements_are_those_of_pyproject():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {None: project["dependencies"], **project["optional-dependencies"]}
    expected = {(extra, text) for extra, texts in groups.items() for text in texts}
    assert {(need.extra, need.name + need.wanted) for need in requirements()} == expected
    assert wanted_python() == project["requires-python"]
    for extra, names in NEEDED.items():
        assert [re.match(r"[\w-]+", text)[0] for text in groups[extra]] == list(names)


METADATA = """\
Metadata-Version: 2.1
Name: no-such-workshop
Version: 1.0
Requires-Python: >=3.99
Requires-Dist: torch>=1
Requires-Dist: no-such-backport>=1; python_version < "3"
Provides-Extra: hf
Requires-Dist: numpy>=9999; extra == "hf"
Requires-Dist: no-such-package<2,>=1; extra == "hf"
Provides-Extra: qlora
Requires-Dist: no-such-quantizer>=1; extra == "qlora"
Provides-Extra: dev
Requires-Dist: no-such-linter>=1; extra == "dev"
"""


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> str:
    """An installed distribution that this machine cannot serve."""
    folder = tmp_path / "no_such_workshop-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "no-such-workshop"


def test_package_lines(workshop):
    lines = {line.name: line for line in module.package_lines(workshop)}
    assert verdicts(lines.values()) == {
        "python": FAIL,
        "torch": OK,
        "numpy": FAIL,
        "no-such-package": FAIL,
        "no-such-quantizer": WARN,
    }
    assert f"{installed_version('numpy')} (wanted >=9999)" == lines["numpy"].found
    assert lines["no-such-package"].found == "not installed (wanted >=1,<2)"
    assert lines["no-such-package"].next_step == "run: bash scripts/setup"
    assert "[qlora]" in lines["no-such-quantizer"].next_step
    assert all(line.next_step for line in lines.values() if line.verdict != OK)


def test_the_next_step_where_there_is_no_set_up(workshop, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "ROOT", tmp_path)
    steps = {line.name: line.next_step for line in module.package_lines(workshop)}
    assert steps["no-such-package"] == 'run: pip install "no-such-package>=1,<2"'
    assert steps["no-such-quantizer"] == 'only for QLoRA: run: pip install "no-such-quantizer>=1"'


def test_helpers_copied_without_metadata():
    first, *others = module.package_lines("no-such-workshop")
    assert first.verdict == WARN and "copied, not installed" in first.found
    assert [line.name for line in others] == [need.name for need in needed()]
    assert {line.verdict for line in others} == {OK}


def test_packages_that_are_missing_are_seen_without_metadata(monkeypatch):
    """peft is for QLoRA alone; without the others no notebook is ready."""
    for name in ("pandas", "ipykernel", "peft"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    lines = module.package_lines("no-such-workshop")
    wrong = {line.name: line for line in lines[1:] if line.verdict != OK}
    assert verdicts(wrong.values()) == {"pandas": FAIL, "ipykernel": FAIL, "peft": WARN}
    assert wrong["pandas"].found == "not installed" and wrong["pandas"].next_step
    assert ready_for(lines, machine()).startswith("Not ready: ipykernel, pandas.")


def test_a_record_without_ranks_is_one_line(capsys):
    with pytest.raises(SystemExit) as left:
        module.main(["--record", "nosuch.json"])
    said = capsys.readouterr().err
    assert left.value.code == 2 and "--ranks" in said and said.count("\n") == 1


def test_data_line(tmp_path):
    assert module.data_line(tmp_path).verdict == FAIL
    good = tmp_path / "texts" / "a.tsv"
    good.parent.mkdir()
    good.write_bytes(b"text")
    digest = hashlib.sha256(b"text").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  texts/a.tsv\n")
    assert module.data_line(tmp_path) == Line("data", OK, "as published, files: 1")
    good.write_bytes(b"text, edited")
    changed = module.data_line(tmp_path)
    assert changed.verdict == FAIL and "a.tsv was changed" in changed.found
    assert "make_data.py" in changed.next_step
    good.unlink()
    assert "a.tsv is missing" in module.data_line(tmp_path).found


def test_helpers_copied_without_data(monkeypatch):
    monkeypatch.setattr(bundled, "FOLDERS", ())
    line = module.bundled_data_line()
    assert (line.verdict, line.found) == (FAIL, "the bundled data/SHA256SUMS is not here")
    assert line.next_step.startswith("copy the project's folder data beside helpers")


@pytest.mark.parametrize(("gb", "verdict"), [(1, FAIL), (4, WARN), (16, OK)])
def test_memory(gb, verdict):
    line = module.memory_line(machine(memory_gb=gb))
    assert line.verdict == verdict and bool(line.next_step) == (verdict != OK)


@pytest.mark.parametrize(("gb", "verdict"), [(0.1, FAIL), (1, WARN), (16, OK)])
def test_disk(gb, verdict):
    assert module.disk_line(machine(disk_gb=gb)).verdict == verdict


def test_compiler():
    assert module.compiler_line(lambda name: None).verdict == WARN
    assert module.compiler_line(lambda name: "/usr/bin/" + name).found in ("g++", "c++", "clang++")


def test_devices():
    assert module.device_line(machine(cores=1)).verdict == WARN
    found = module.device_line(machine(gpus=2)).found
    assert found == "2 x NVIDIA A100-SXM4-40GB, 42 GB each"


def test_this_machine_is_found():
    here = find_machine()
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here.memory_bytes is None or here.memory_bytes > 5e8
    assert here.free_disk_bytes > 0


def test_last_line_says_what_for():
    fine = [Line("python", OK, "3.12")]
    every = "; ".join(f"{number} (tiny)" for number in PROFILES)
    assert ready_for(fine, machine()) == f"Ready for notebooks, with profiles: {every}."
    assert "1 (tiny, single_gpu)" in ready_for(fine, machine(gpus=1))
    assert "1 (tiny, single_gpu, multi_gpu)" in ready_for(fine, machine(gpus=8))
    failed = ready_for([*fine, Line("data", FAIL, "gone")], machine())
    assert failed.startswith("Not ready: data.")


REPORT = Report((Line("python", OK, "3.12"), Line("data <b>", FAIL, "gone", "make it & go")), "No.")


def test_report_as_text_and_as_table():
    assert not REPORT.ok
    lines = str(REPORT).splitlines()
    assert lines[0] == "[ok]   python    3.12"
    assert lines[1] == "[fail] data <b>  gone  -> make it & go"
    assert lines[-1] == "No."
    table, verdict = ElementTree.fromstring(f"<div>{REPORT._repr_html_()}</div>")
    assert verdict.find("strong").text == "No."
    rows = table.findall("tbody/tr")
    assert [row.find("th").text for row in rows] == ["python", "data <b>"]
    assert [td.text for td in rows[1].findall("td")] == ["[fail]", "gone", "make it & go"]


def test_a_failing_line_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(module, "doctor", lambda *_: REPORT)
    assert module.main() == 1
    assert "[fail] data" in capsys.readouterr().out


@pytest.mark.slow
def test_ranks_that_cannot_start_are_a_failing_line():
    line = module.all_reduce_line("nonsense")
    assert line.verdict == FAIL
    assert line.found and "\n" not in line.found
    by_hand = "torchrun --nproc-per-node 2 -m helpers.lab.machine.two_rank_check"
    assert by_hand in line.next_step


@pytest.mark.slow
def test_doctor_as_it_is_started():
    done = subprocess.run(
        [sys.executable, "-m", "helpers.lab.doctor"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    text = done.stdout
    assert done.stderr == ""
    assert re.search(r"^\[ok\] +two ranks, gloo +started, summed and ended in ", text, re.M), text
    assert done.returncode == (1 if "[fail]" in text else 0)
    assert text.rstrip().splitlines()[-1].startswith(("Ready for", "Not ready"))
    for folder in (str(ROOT), str(Path.home()) + "/", sys.prefix):
        assert folder not in text


@pytest.mark.parametrize("known", [True, False])
def test_doctor_needs_torch_alone(known):
    """It is the tool for a broken environment, so it may not need what it looks for."""
    packages = ["transformers", "pandas", "matplotlib", "IPython", "papermill", "tokenizers"]
    packages += [] if known else ["packaging", "packaging.requirements"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
        "from helpers.lab import doctor; print(*doctor.package_lines())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert ("name='torch'" if known else "name='packaging', verdict='fail'") in done.stdout


def test_doctor_without_torch_says_so():
    code = (
        "import sys, runpy; sys.modules['torch'] = None\n"
        "runpy.run_module('helpers.lab.doctor', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "[fail] torch  not installed  -> run: bash scripts/setup"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_report_that_a_full_disk_does_not_take_is_a_line():
    code = (
        "import sys; from helpers.lab import doctor; "
        "doctor.doctor = lambda *_: doctor.Report((doctor.Line('data', 'ok', ''),), ''); "
        "sys.exit(doctor.main())"
    )
    said = "error: the report cannot be written: No space left on device\n"
    assert on_a_full_disk("-c", code) == (1, said)
