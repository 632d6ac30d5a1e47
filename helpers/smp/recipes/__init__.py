"""HyperPod recipes and launcher configurations, read as runs of this project.

    found = read_recipe(Path("hf_llama3_8b_seq8k_gpu_p5x16_pretrain.yaml"))
    found.job, found.lines

helpers.entries reads a file as keys with their lines; keys.csv has what becomes of each key, and
readings.py how its value is read; recipe.py puts them together: plan, flags, machines, and the
model's configuration for the planner's prices. launched.py is for estimators that name a recipe.
refused.csv names what is for something else: reinforcement learning, preference tuning, closed
models, Trainium, evaluations.

Source: github.com/aws/sagemaker-hyperpod-recipes at 2631995 (2026-06-23), and its history.
"""
