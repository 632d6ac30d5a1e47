"""What a converted script calls where it called the closed library: the engine, in its words.

groups.py counts ranks and groups as the library does; session.py has Session, which a script that
`--write` has converted calls `run`: the plan of its configuration, the ranks and groups as the
library counts them, the model, its optimizer, a step, checkpoints. step_optimizer.py keeps the
script's own optimizer: its class, groups and schedule of the learning rate; user_content.py is what
a script keeps beside a checkpoint. All are thin: what they do is the engine's.
"""

from helpers.smp.running.session import Session

__all__ = ["Session"]
