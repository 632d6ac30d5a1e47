"""Set-up ends well with uv or without, with torch's own index or without, or in one line."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.support.matrix import part

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bare_project(tmp_path):
    """What set-up reads, in a folder of its own."""
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def set_up(project: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(project / "scripts" / "setup")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **environment},
        timeout=300,
    )


def stub(folder: Path, name: str, script: str) -> Path:
    path = folder / "stubs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def only_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


NO_NETWORK = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "0",
    "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
    "UV_NO_CACHE": "1",
    "UV_NO_CONFIG": "1",
    "UV_HTTP_TIMEOUT": "5",
}


@pytest.mark.skipif(
    not (ROOT / ".venv" / ".setup-done").exists(), reason="not set up by scripts/setup"
)
def test_a_second_set_up_costs_nothing():
    set_up(ROOT)
    start = time.monotonic()
    done = set_up(ROOT)
    assert time.monotonic() - start < 2
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_old_python_is_named(bare_project):
    old = stub(bare_project, "python", 'case "$2" in *print*) echo 3.8.18 ;; *) exit 1 ;; esac')
    line = only_line(set_up(bare_project, PYTHON=str(old)))
    assert "Python 3.10 or newer is needed" in line
    assert f"{old} is Python 3.8.18" in line
    assert not (bare_project / ".venv").exists()


def test_no_python_is_said_so(bare_project):
    line = only_line(set_up(bare_project, PYTHON="no-such-python"))
    assert "no Python was found" in line


def test_a_full_disk_is_said_before_anything_is_made(bare_project):
    df = stub(bare_project, "df", 'echo "Filesystem 1K Used Free"; echo "disk 9 9 1200000 9% /"')
    path = f"{df.parent}{os.pathsep}{os.environ['PATH']}"
    line = only_line(set_up(bare_project, PATH=path))
    assert "1200 MB are free" in line
    assert "3000 MB are needed" in line
    assert not (bare_project / ".venv").exists()


def test_without_a_network_one_line_says_so_and_a_half_made_environment_is_not_trusted(
    bare_project,
):
    (bare_project / ".venv" / "bin").mkdir(parents=True)
    half_made = bare_project / ".venv" / "half-made"
    half_made.touch()
    (bare_project / ".setup-unfinished").touch()
    gone = subprocess.Popen(["true"])
    gone.wait()
    (bare_project / ".setup-running").write_text(f"{gone.pid}\n")  # a lock that nobody holds
    done = set_up(bare_project, PYTHON=sys.executable, **NO_NETWORK)
    assert "did not finish; making the environment again" in done.stdout
    assert not half_made.exists()
    line = only_line(done)
    assert "the package index cannot be reached" in line
    log = re.search(r"log: (.*)\)", line)
    assert Path(log[1]).is_file()
    assert not (bare_project / ".venv" / ".setup-done").exists()
    assert not (bare_project / ".setup-running").exists()


# --- uv or none, torch's own index or none -----------------------------------------------------

# The real pip installs made-up wheels from two folders: one stands for the ordinary index, the
# other for torch's own, which is out of reach while its folder is missing. A script stands for uv:
# it fails as uv does, or leaves the work to pip with both folders.
FAKE_UV = """#!/bin/sh
echo "${UV_TORCH_BACKEND:-} retries=${UV_HTTP_RETRIES:-} $*" >>"$FAKE_CALLS"
[ "$1 $2 $3" = "pip install --python" ] || exit 64
python="$4"
shift 4
[ -n "${UV_TORCH_BACKEND:-}" ] || exec "$python" -m pip install "$@"
[ -d "$FAKE_TORCH_INDEX" ] && exec "$python" -m pip install --find-links "$FAKE_TORCH_INDEX" "$@"
echo "error: Request failed after 1 retry in 1.8s" >&2
echo "  cause: Failed to fetch: $FAKE_TORCH_INDEX/torch/" >&2
exit 2
"""
BACKEND = """
import os, shutil

def build_editable(folder, *_):
    return os.path.basename(shutil.copy("helpers-0.1.0-py3-none-any.whl", folder))
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
TOOLS = "awk bash cat cksum cut df dirname env grep head mv rm sh sleep tail touch tr"


def write_wheel(folder: Path, name: str, version: str, lines: str = "", script: str = "") -> None:
    """A wheel that holds nothing but its metadata and one executable."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        if script:
            entry = zipfile.ZipInfo(f"{name}-{version}.data/scripts/{name}")
            entry.external_attr = 0o100755 << 16
            wheel.writestr(entry, script)


class Machine:
    """A project that needs torch alone, on a machine with just the tools of set-up.

    Its environment is there already, for each would take seconds to make.
    """

    def __init__(self, project: Path, environment: Path):
        self.project = project
        self.stubs = project / "stubs"
        self.ordinary_index = project / "ordinary-index"
        self.torch_index = project / "torch-index"
        self.calls = project / "calls"
        shutil.copytree(environment, project / ".venv", symlinks=True)
        self.stubs.mkdir()
        self.calls.touch()
        for tool in TOOLS.split():
            (self.stubs / tool).symlink_to(shutil.which(tool))
        (project / "pyproject.toml").write_text(PYPROJECT)
        (project / "backend.py").write_text(BACKEND)
        (project / "constraints.txt").write_text("torch==2.13.0\n")
        write_wheel(project, "helpers", "0.1.0", "Requires-Dist: torch\n")
        write_wheel(self.ordinary_index, "torch", "2.13.0")
        write_wheel(self.ordinary_index, "uv", "1.0", script=FAKE_UV)
        configuration = f"[global]\nno-index = true\nfind-links = {self.ordinary_index}\n"
        (project / "pip.conf").write_text(configuration)

    def put_uv_on_the_path(self, script: str = FAKE_UV) -> None:
        (self.stubs / "uv").write_text(script)
        (self.stubs / "uv").chmod(0o755)

    def open_torch_index(self) -> None:
        write_wheel(self.torch_index, "torch", "2.13.0+cpu")

    def start(self, **environment: str) -> subprocess.Popen:
        """Set-up in a process group of its own, without the variables of the caller."""
        clean = {
            key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))
        }
        own = {
            "PATH": str(self.stubs),
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": str(self.project / "pip.conf"),
            "FAKE_CALLS": str(self.calls),
            "FAKE_TORCH_INDEX": str(self.torch_index),
        }
        return subprocess.Popen(
            ["bash", str(self.project / "scripts" / "setup")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean, **own, **environment},
            start_new_session=True,
        )

    def ends_well(self, **environment: str) -> str:
        """What a set-up that succeeds says."""
        with self.start(**environment) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert output.endswith("setup: ready\n")
        assert (self.project / ".venv" / ".setup-done").is_file()
        assert not (self.project / ".setup-unfinished").exists()
        return output

    def torch(self) -> str:
        (found,) = (self.project / ".venv").glob("lib/python*/site-packages/torch-*.dist-info")
        return found.name.removeprefix("torch-").removesuffix(".dist-info")

    def uv_is_in_the_environment(self) -> bool:
        return (self.project / ".venv" / "bin" / "uv").exists()


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def machine(bare_project, empty_environment):
    return Machine(bare_project, empty_environment)


@pytest.mark.parametrize(
    ("uv", "torch_index"), part([(True, True), (False, False)], [(True, False), (False, True)])
)
def test_set_up_ends_well(machine, uv, torch_index):
    if uv:
        machine.put_uv_on_the_path()
    if torch_index:
        machine.open_torch_index()
    output = machine.ends_well()
    assert machine.torch() == ("2.13.0+cpu" if torch_index else "2.13.0")
    fallback = "setup: torch's own index cannot be reached; pip installs everything from the"
    assert output.count(fallback) == (not torch_index)
    assert machine.uv_is_in_the_environment() == (not uv)
    (call,) = machine.calls.read_text().splitlines()
    assert call.startswith("auto retries=1 ")


def test_where_uv_cannot_be_had_pip_installs(machine):
    (machine.ordinary_index / "uv-1.0-py3-none-any.whl").unlink()
    machine.open_torch_index()
    assert "uv cannot be installed; pip installs the packages" in machine.ends_well()
    assert machine.torch() == "2.13.0"


def test_a_source_that_a_variable_of_uv_names_is_used(machine):
    machine.put_uv_on_the_path()
    machine.ends_well(UV_INDEX="http://127.0.0.1:9/simple")
    (call,) = machine.calls.read_text().splitlines()
    assert call.startswith(" retries= ")
    assert machine.torch() == "2.13.0"


def test_a_source_that_a_variable_of_pip_names_is_used_by_pip(machine):
    machine.put_uv_on_the_path()
    machine.open_torch_index()
    machine.ends_well(PIP_NO_INDEX="1")
    assert machine.calls.read_text() == ""
    assert machine.torch() == "2.13.0"


def test_where_uv_and_pip_fail_one_line_speaks_of_pip(machine):
    machine.put_uv_on_the_path()
    (machine.ordinary_index / "torch-2.13.0-py3-none-any.whl").unlink()
    with machine.start() as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a package has no version for Python" in output.splitlines()[-1]


def test_an_interruption_is_not_a_reason_to_try_pip(machine):
    machine.put_uv_on_the_path(
        '#!/bin/sh\ntrap "exit 130" INT\necho started >>"$FAKE_CALLS"\nsleep 60 & wait\n'
    )
    with machine.start() as process:
        while not machine.calls.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "pip installs" not in output
    assert (machine.project / ".setup-unfinished").exists()
    assert not (machine.project / ".setup-running").exists()
