"""The laboratory: what runs in a notebook's kernel. Nothing imports it but notebooks and scripts.

From the ground up: paths.py; machine (what is here), runs (what a run left behind), figures (drawn
so that everyone can read them), launch (start ranks, follow them, stop them, say why they failed),
then doctor.py with ranks_health.py, calls (a function or a cell on every rank), comparison (is one
way faster?), drawings (ideas as pictures), notebook (preflight, record), exercises (graded),
cluster (the same run as a job elsewhere).

The names below are the laboratory's face; those of every day are in `helpers` itself.
"""

from typing import Any

from helpers.engine import lazy

HOMES = {
    "ROOT": "paths",
    # figures of runs
    "plot_loss": "figures.training_plots",
    "plot_memory": "figures.training_plots",
    "plot_phases": "figures.training_plots",
    "plot_throughput": "figures.training_plots",
    "compare_schedules": "runs.pipeline_steps",
    "case_of": "runs.pipeline_steps",
    "plot_bubbles": "figures.pipeline_plots",
    "compare_rungs": "runs.shard_ladder",
    "plot_ladder": "figures.sharding_plots",
    "plot_by_length": "figures.sharding_plots",
    # figures of plans
    "plot_fit": "figures.planning_plots",
    "plot_scaling": "figures.planning_plots",
    "plot_out_of_node": "figures.planning_plots",
    "plot_sequences": "figures.planning_plots",
    "MEMORY_SLIDERS": "figures.what_if_tables",
    "PLAN_SLIDERS": "figures.what_if_tables",
    "memory_table": "figures.what_if_tables",
    "plan_table": "figures.what_if_tables",
    "explore": "figures.what_if_sliders",
    "show_text": "figures.display",
    # ideas as pictures
    "draw_map_of_parallelism": "drawings.parallelism_map",
    "draw_tensor_parallel": "drawings.tensor_block",
    "draw_schedule": "drawings.schedule",
    "draw_placement": "drawings.rank_grid",
    "draw_partition": "drawings.stages",
    "stages_of": "drawings.stages",
    "EMBEDDING": "drawings.stages",
    "HEAD": "drawings.stages",
    "draw_fusion": "drawings.fusion",
    "passes": "drawings.fusion",
    "GELU": "drawings.fusion",
    "JOINED": "drawings.fusion",
    "draw_adapters": "drawings.lora",
    "draw_shards": "drawings.shards",
    "draw_ring": "drawings.sequence_parts",
    "draw_shares": "drawings.sequence_parts",
    "draw_leaving": "drawings.leaving",
    "plot_verdicts": "drawings.leaving",
    "plot_bills": "drawings.leaving",
    "draw_timeline": "drawings.profile_trace",
    "draw_memory": "drawings.profile_trace",
    # tables that several notebooks show
    "cost_table": "notebook.common_tables",
    "parity_table": "notebook.common_tables",
    "prediction_table": "notebook.common_tables",
    # comparisons
    "launch_in_turn": "comparison.sides",
    "compare_runs": "comparison.sides",
    "plot_speeds": "comparison.plots",
    "plot_losses": "comparison.plots",
    "plot_costs": "comparison.plots",
    "plot_times": "comparison.plots",
    "plot_break_even": "comparison.plots",
    "find_batch": "comparison.batch_finder",
    "scaled_lr": "comparison.batch_finder",
    # exercises
    "LEVELS": "exercises.topics.qlora",
    "try_plan": "exercises.topics.pipeline",
    "try_layout": "exercises.topics.planning",
    # a function or a cell on every rank
    "on_ranks": "calls.on_ranks",
    "side_by_side": "calls.side_by_side",
    # elsewhere
    "Link": "launch.nodes.network_namespaces",
    "slurm_script": "cluster.slurm",
    "train_job": "cluster.kubeflow",
    "sky_task": "cluster.skypilot",
    "describe": "cluster.described_run",
    "local_slurm": "cluster.local_slurm",
    "lost_agent": "launch.nodes.lost_agent",
    "estimator_arguments": "cluster.sagemaker",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext helpers.lab` makes `%%ranks` known: a cell on every rank."""
    from helpers.lab.calls.cell import register

    register(shell)
