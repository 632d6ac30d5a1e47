"""The training entry point, `python -m helpers.train`, as a script.

torchrun --nproc-per-node 2 scripts/train.py --model gptj-tiny --tp 2 --steps 50 --out runs/one
"""

import runpy

runpy.run_module("helpers.train", run_name="__main__", alter_sys=True)
