"""Rules over what a training step has anyway: gradients, weights, updates, activations, losses.

observe.py looks at one step and sums over all ranks, so that every layout sees the same numbers;
rules.py holds the rules, small functions over what was observed, each with its source and with the
name that SageMaker Debugger had for it; watch.py says when to look and what is new.

Sources: each rule's own, in `RULES`; Rauschmayr et al. 2021, Amazon SageMaker Debugger: A System
for Real-Time Insights into Machine Learning Model Training.
"""
