"""The engine itself, as any rank of any world, with tensors that have sizes and no values.

dry_run.py runs one training step on torch's fake tensors over a process group that sends nothing;
fake_device.py is what those stand on and when a host would wait for it;
tensor_watch.py notes what each operation does to memory, FLOPs and messages. forward_products.py
counts the FLOPs of a class's own forward in the same way, kept_by_blocks.py what blocks leave for
their backward, experts_again.py whether recomputing sends the sums of experts again. Nothing is
modelled, so this is what the formulas of memory and time are held against (tests/planner/dry_run/).

Source: torch's FakeTensorMode and fake process group, which its own tests use.
"""
