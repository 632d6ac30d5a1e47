"""What an older torch does not do with adapters."""

import pytest
import torch

from helpers.engine.adapters.qlora import SHARES_CODES
from helpers.engine.plan import ParallelPlan


def skip_what_is_refused(plan: ParallelPlan) -> None:
    if plan.zero == 3 and torch.__version__ < SHARES_CODES:
        pytest.skip("this torch does not share codes of 4 bits")
