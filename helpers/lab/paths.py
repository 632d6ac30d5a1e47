"""Where the project is, and how a path is shown: nothing that names the reader's machine."""

import os
import re
import sysconfig
from itertools import chain, count
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError

PACKAGES = Path(__file__).resolve().parents[2]  # the folder that holds helpers/


def _project_root() -> Path:
    """The project that helpers/ lies in; the current folder where it was installed or copied."""
    return PACKAGES if (PACKAGES / "pyproject.toml").is_file() else Path.cwd()


ROOT = _project_root()


def unused(path: str | Path) -> str:
    """`path` relative to the project root, or `path`-2, -3, .. where a run stands there already.

    A notebook's cell can so be run again without losing what it made before.
    """
    names = chain([str(path)], (f"{path}-{number}" for number in count(2)))
    return next(name for name in names if not (ROOT / name).exists())


def plain(name: str) -> str:
    """`name` as a folder's: letters, digits and what is safe in every shell."""
    return "".join(one if one.isalnum() or one in "._" else "-" for one in name)


def check_out(out: Any) -> None:
    """Raise a UserError if it can be no folder's name."""
    if not isinstance(out, (str, os.PathLike)) or not str(out):
        raise UserError(f"out is {out!r:.40}: give the name of a folder")


def shown(path: str | Path) -> str:
    """`path` relative to the project root, or to the current folder when it lies outside."""
    path = Path(os.path.abspath(path))
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    return Path(os.path.relpath(path)).as_posix()


def shorten(text: str) -> str:
    """`text` without the folders of this machine: the project, the packages, Python, home."""
    return _FOLDERS.sub(lambda match: "~/" if match.group() == _HOME else "", text)


_HOME = os.path.join(os.path.expanduser("~"), "")
_PYTHON = sysconfig.get_paths()
# the inner folders first; none in the middle of another path
_FOLDERS = re.compile(
    r"(?<![\w.~/-])(?:{})".format(
        "|".join(
            re.escape(os.path.join(folder, ""))
            for folder in (_PYTHON["purelib"], _PYTHON["platlib"], _PYTHON["stdlib"], ROOT, _HOME)
            if str(folder) != os.sep
        )
    )
)
