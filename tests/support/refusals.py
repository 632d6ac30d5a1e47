"""The words with which a call is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from helpers.engine.errors import UserError


def said(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """What the UserError says, in one line, with which the call ends."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    assert "\n" not in caught.value.args[0]  # str() writes it out
    return str(caught.value)
