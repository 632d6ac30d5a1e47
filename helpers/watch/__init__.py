"""Rules over what a training step has anyway: gradients, weights, updates, activations, losses.

observe.py looks at one step and sums over all ranks, so that every layout sees the same numbers;
history.py holds the looks and the losses of a run; steps.py and losses.py hold the rules, small
functions over them, and limits.py where they draw their lines; rules.py is the table of them, each
with its source and with the name that SageMaker Debugger had for it; watch.py says when to look
and what is new.

Sources: each rule's own, in `RULES`; Rauschmayr et al. 2021, Amazon SageMaker Debugger: A System
for Real-Time Insights into Machine Learning Model Training.
"""
