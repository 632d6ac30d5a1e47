"""A look at the run's own ranks before a model is loaded onto them: --preflight."""

import argparse

import torch

from helpers.commands import is_first
from helpers.engine.errors import UserError
from helpers.planner.measure.calibrate import load_cluster
from helpers.planner.measure.health import examine
from helpers.planner.measure.health_verdict import expected_rates, judge

REFUSE = "refuse"
MOST_NAMED = 3


def preflight(args: argparse.Namespace, device: torch.device) -> list[str]:
    """What is wrong with these ranks, as warnings. Every rank calls it, and all find the same.

    Raises:
        UserError: some are slower than their peers, and --preflight says refuse.
        OSError: nothing can be written where the run will be.
    """
    if args.preflight is None:
        return []
    record = load_cluster(args.preflight_record) if args.preflight_record else None
    found = examine(args.out, device)
    findings = judge(found, expected_rates(found, record))
    slow = [finding.words for finding in findings if finding.slower]
    if slow and args.preflight == REFUSE:
        named = "; ".join(slow[:MOST_NAMED])
        more = f"; and {len(slow) - MOST_NAMED} more" if len(slow) > MOST_NAMED else ""
        raise UserError(f"preflight: {named}{more} (--preflight warn starts all the same)")
    warnings = [f"preflight: {finding.words}" for finding in findings]
    if is_first():
        for warning in warnings:
            print(f"warning: {warning}", flush=True)
    return warnings
