"""Which models are laid out: those of which a small copy, laid out in the same way, gives what the
class itself gives in one process. What rules say of a model is not believed, but tried.

Read trial.py first: what differs between a small copy of a model, laid out, and truth.py, its
class's own loss and gradients. small_copies.py makes its configuration, and kinds.py says of what
kind a model is, and what somebody changed of it since its class made it. admitted.py takes the
first way to lay a model out under a plan that passes the trial, and says what is wrong, and what
works, where none does. packed_rows.py tries how the documents of a packed row are kept apart, and
padded_rows.py what padding before a row predicts. given_model.py says what a model must be before
any of that, hooks.py which hooks it may have, and same_on_all.py what must be the same on every
rank.
"""
