"""What older packages do not have, of those that pyproject.toml admits."""

from importlib.util import find_spec

import pytest
import torch

from helpers.engine.adapters.qlora import SHARES_CODES
from helpers.engine.plan import ParallelPlan


def skip_what_is_refused(plan: ParallelPlan) -> None:
    if plan.zero == 3 and torch.__version__ < SHARES_CODES:
        pytest.skip("this torch does not share codes of 4 bits")


def skip_unknown(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {model_type}")


def skip_without_conversion() -> None:
    """peft took a layer that is named as an older class's expert for a layer, as it is."""
    if find_spec("peft.utils.transformers_weight_conversion") is None:
        pytest.skip("this peft converts no experts")
