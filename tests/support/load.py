"""Scripts as modules: scripts/ is no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    """The module of scripts/NAME.py."""
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with patch.object(sys, "path", [str(path.parent), *sys.path]):  # as when it is run
        spec.loader.exec_module(module)
    return module
