"""A function as bytes, with what it uses: what another process needs to call it.

cloudpickle writes it, and since 3.1.3 leaves out in which file the code stands. Here each piece of
code keeps its file, so that an error in another process is shown with the text of its line.
"""

import io
from collections.abc import Callable
from types import CodeType
from typing import Any

from helpers.engine.errors import need


def by_value(value: Any) -> bytes:
    """What `pickle.loads` makes `value` of, where this project and cloudpickle are installed.

    Raises:
        UserError: the package cloudpickle is missing.
        Exception: of any kind, where `value` cannot leave its process.
    """
    theirs = need("cloudpickle", "notebooks").Pickler
    reduced = theirs.dispatch_table[CodeType]

    def with_file(code: CodeType) -> tuple[Callable, tuple]:
        return _in_file, (code.co_filename, *reduced(code))

    class Pickler(theirs):
        dispatch_table = theirs.dispatch_table.new_child({CodeType: with_file})

    written = io.BytesIO()
    Pickler(written).dump(value)
    return written.getvalue()


def _in_file(file: str, make: Callable[..., CodeType], parts: tuple) -> CodeType:
    return make(*parts).replace(co_filename=file)
