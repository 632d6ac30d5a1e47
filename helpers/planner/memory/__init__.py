"""Bytes of a rank at the fullest moment of a training step.

Read states.py first, then activations.py and components.py: what is kept, the end of the model and
what is on its way, each one formula; gradient_messages.py is of gradients on their way into sums.
turns.py walks along a rank's order: what is in flight and on its way at each backward, and by
gathered_ahead.py what waits gathered; moments.py has it in bytes, where most can be held.
step_events.py says what comes and goes in each stretch of a step, timeline.py finds the fullest
moment of a stretch, and peak.py that of the step, by what it is for (categories.py). adapted.py is
the same of adapters beside a frozen base, and programs.py of other programs than the engine.

Papers: Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054); Korthikanti et al. 2022, Reducing
Activation Recomputation (arXiv 2205.05198).
"""
