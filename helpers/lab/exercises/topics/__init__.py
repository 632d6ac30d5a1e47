"""What judges an answer, by topic: a file for each notebook's.

tensor.py (notebook 1), pipeline.py (2), compiling.py (3), qlora.py (4), sharding.py (5),
planning.py (6), slowness.py (7), several_nodes.py (8), leaving.py (10). They compute what is right
by the planner, the simulator and torch, so no answer is written down here, but for 7a, where it is
what was planted, and 10c, whose scripts are. What runs on real ranks is judged in on_ranks.

Sources: each notebook's own papers and published runs, as helpers.planner.published has them.
"""
