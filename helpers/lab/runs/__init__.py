"""A run that is over, read from its folder.

run.py has the tables: a row per step, where the time went, what it cost, and runs beside each
other; reading.py says what the files must hold. failure_report.py finds the first failing rank's
own words in what torchrun left on disk. pipeline_steps.py and shard_ladder.py are the tables of
two notebooks: a pipeline's bubble measured beside simulated, and the stages of ZeRO from DDP to
offloading.

What a run's folder holds: metrics.jsonl and summary.json of the program (helpers/engine/files/
run_record.py), launch.json and logs/ of the launcher (helpers/lab/launch), where it was asked for
traces/, timeline.json, checkpoints/ and model/.
"""
