"""What a run reads and leaves on disk: weights, checkpoints, its record.

blank.py makes a model whose parameters have no memory yet. weights.py gives each rank just its
slices of them and writes whole models that transformers loads; weight_files.py is the files
themselves, tensor_file.py one of them, names_in_files.py what they call and how they cut the
weights, and random_weights.py draws what no file holds. beside_weights.py is what a folder says
beside them.
checkpoints.py saves and resumes a run under any plan, trainer_state.py is what of a trainer goes
into it, manifest.py says what a checkpoint holds and whether that is still so, and
metadata_reader.py reads torch's own file without running what is in it. run_record.py writes
metrics.jsonl and summary.json; whole.py writes a file of text at once.

On disk: safetensors for weights, torch.distributed.checkpoint for checkpoints, JSON for the rest.
"""
