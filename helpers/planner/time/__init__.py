"""Messages and seconds of a training step.

Read messages.py first: what a message is, and how long it takes. tensor_messages.py,
context_messages.py, pipeline_messages.py and data_messages.py list those of each axis,
overlapped_messages.py all of a rank. roofline.py has the time of one operation, block_time.py that
of a block, adapted.py that of a frozen block with adapters, stage_time.py that of a pipeline stage
with the model's ends. makespan.py takes the stages through the schedule, overlapped_messages.py
says which data messages show, and step_time.py adds it all up. shared_cores.py simulates ranks that
share cores.

Papers: Megatron-LM (arXiv 1909.08053, 2104.04473, 2205.05198), ZeRO (1910.02054), FSDP
(2304.11277), Ring Attention (2310.01889), Ulysses (2309.14509), FlashAttention-2 (2307.08691), Alpa
(2201.12023); Williams et al. 2009, Roofline.
"""
