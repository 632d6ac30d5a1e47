"""The planner against what others measured, as the page docs/planner.md.

    python -m helpers.planner.audit              # prints the page, and writes it anew
    python -m helpers.planner.audit --fit        # fits the constants anew, which takes minutes

Read constants.py first: the few numbers of the time model that were fitted to published runs, and
the values that they have with one source left out, which are left_out.csv. rows.py predicts every
row with both, and sums up errors by source and by generation of GPUs. order.py asks whether of two
layouts the faster is said to be, and what following the planner would have cost. spread.py makes
ranges of the errors. memory.py compares with published memory; page.py writes all of it down.
"""
