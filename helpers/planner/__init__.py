"""The planner: will a training run fit, how long will it take, what will it cost; before it starts.

It is arithmetic over a model's shape and a cluster's speeds, checked against the engine (dry_run)
and against published runs (published, audit and docs/planner.md). From the ground up:

    shape      a model's widths, one block as a list of linear layers, and the tensors it holds
    cost.py    parameters, FLOPs, bytes of state and money: one formula a function
    hardware   GPUs, instances and prices as dated facts, and clusters of them
    model      a model under a plan: the job that all formulas are about
    memory     what a rank holds at its fullest moment
    time       messages and seconds of a step; scaling.py: ratios between numbers of machines
    search     every plan that fits, the best of them, and why
    bill       the whole bill of a plan: checkpoints, failures, energy; what a budget buys
    dry_run    the engine itself on tensors without values; measure: this machine's own speeds
    published  what others ran, said and claimed; audit compares it with the planner

Papers: Megatron-LM (arXiv 1909.08053, 2104.04473, 2205.05198), ZeRO (1910.02054), PaLM
(2204.02311), Alpa (2201.12023). Calculon (github.com/calculon-ai/calculon): what real links reach.
"""

from helpers.engine import lazy

HOMES = {
    # machines and prices
    "make_cluster": "hardware.cluster",
    "with_nodes": "hardware.cluster",
    "find_gpu": "hardware.lookup",
    "find_instance": "hardware.lookup",
    "price": "hardware.lookup",
    "peak_flops": "hardware.lookup",
    "coordinates": "hardware.rank_groups",
    "calibrate": "measure.calibrate",
    # a plan on a cluster
    "model_shape": "shape.families",
    "tensor_traffic": "time.tensor_messages",
    "estimate": "search.estimate",
    "search_plans": "search.search",
    "explain": "search.explain",
    "describe": "search.explain",
    "adapted_state": "model.adapters",
    "Adapters": "model.adapters",
    "whole_bill": "bill.whole_bill",
    "compute_optimal": "bill.compute_optimal",
    "efficiencies": "scaling",
    "speedups": "scaling",
    "simulate_shared": "time.shared_cores",
    # published runs
    "find_post": "published.posts",
    "audit_comparison": "published.compiler_comparison",
    "side_by_side": "published.speed_claims",
}
__all__ = ["cost", *HOMES]
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)
