"""What others ran, said and claimed, as data with sources, and what can be recomputed from it.

models.py and runs.py read models.csv, machines.csv, runs.json and figure_1.csv: training runs with
their layouts and times, which planner/audit predicts. posts.py reads posts.json: logs, slides and
manuals that the notebooks audit, by `find_post(name)`. speed_claims.py tells the two meanings of
"x % faster" apart, equal_work.py whether two runs did the same work, and compiler_comparison.py
applies both to a published comparison. A row more is all that a new run or post needs.

Sources stand in each row: papers, repositories with commits, stored outputs of notebooks.
"""
