"""Every key of the SageMaker model parallel library, as a table; smp_config.py reads it.

Sources: version 1, sagemaker-python-sdk v2.199.0, doc/api/training/smd_model_parallel_general.rst;
version 2, the SageMaker developer guide and the class SMP of the same SDK.
"""

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True)
class Key:
    """What is known of a key.

    kind: `whole` (a whole number from `least`), `number` (from 0 to `most`), `flag`, `word`, or the
        words it may be.
    default: the library's own.
    note: why it does nothing here; such a key is left out.
    only: the one value that can be kept, where there is one; `why` not the others, and the nearest.
    """

    kind: str | tuple[str, ...]
    default: Any = None
    least: int = 1
    most: float = inf
    note: str = ""
    only: Any = None
    why: str = ""

    def wants(self, value: Any) -> str | None:
        """What the value should be, if it is not."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind == "whole":
            fits = number and isinstance(value, int) and value >= self.least
            return None if fits else f"a whole number of at least {self.least}"
        if self.kind == "number":
            fits = number and 0 <= value <= self.most
            return (
                None
                if fits
                else "a number of at least 0" + (self.most < inf) * f" and at most {self.most:g}"
            )
        if self.kind == "flag":
            return None if isinstance(value, bool) else "True or False"
        if self.kind == "word":
            return None if isinstance(value, str) else "a word"
        return None if value in self.kind else f"one of {', '.join(self.kind)}"


_FLAG, _WHOLE, _NUMBER = "flag", "whole", "number"
_FSDP = "fully_shard gathers a block at a time and frees it, without this threshold"
_ON_META = "models are always built without memory and each rank reads its own slices"
_HORIZON = "what is offloaded is always on its way back two blocks ahead"
_ORDER = "the schedule alone fixes the order of execution"

V1 = {
    "partitions": Key(_WHOLE),
    "pipeline_parallel_degree": Key(_WHOLE),
    "microbatches": Key(_WHOLE, 1),
    "pipeline": Key(("interleaved", "simple"), "interleaved"),
    "active_microbatches": Key(_WHOLE),
    "optimize": Key(("speed", "memory"), "memory"),
    "memory_weight": Key(_NUMBER, most=1),
    "placement_strategy": Key("word", "cluster"),
    "auto_partition": Key(_FLAG, True),
    "default_partition": Key(_WHOLE, least=0, note="only smp.partition(i) in a script used it"),
    "contiguous": Key(_FLAG, only=True, why="stages are always runs of neighbouring layers"),
    "horovod": Key(_FLAG, only=False, why="that is of TensorFlow; ddp is PyTorch's data axis"),
    "ddp": Key(_FLAG, False),
    "deterministic_server": Key(_FLAG, note=_ORDER),
    "tensor_parallel_degree": Key(_WHOLE, 1),
    "prescaled_batch": Key(_FLAG, False),
    "shard_optimizer_state": Key(_FLAG, False),
    "sharded_data_parallel_degree": Key(_WHOLE, 1),
    "sdp_reduce_bucket_size": Key(_NUMBER, 5e8, note="fully_shard reduces block by block"),
    "sdp_param_persistence_threshold": Key(_NUMBER, 1e6, note=_FSDP),
    "sdp_max_live_parameters": Key(_NUMBER, 1e9, note=_FSDP),
    "sdp_hierarchical_allgather": Key(_FLAG, True, note="NCCL chooses the way of a gather"),
    "sdp_gradient_clipping": Key(_NUMBER, 1.0),
    "ddp_dist_backend": Key(("auto", "nccl", "smddp"), "auto", note="NCCL on GPUs, gloo on CPUs"),
    "offload_activations": Key(_FLAG, False),
    "activation_loading_horizon": Key(_WHOLE, 4, note=_HORIZON),
    "fp16": Key(_FLAG, False),
    "fp16_params": Key(_FLAG, False),
    "bf16": Key(_FLAG, False),
    "delayed_parameter_initialization": Key(_FLAG, False, note=_ON_META),
    "skip_tracing": Key(_FLAG, False, note="nothing is traced"),
    # not documented, but seen in scripts and logs
    "checkpoint_attentions": Key(
        _FLAG,
        only=False,
        why="the nearest is activation=selective, which recomputes all but the "
        "results of matrix products",
    ),
    "_match_weights": Key(_FLAG, note="it was for the library's own tests"),
    "_fp32_grad_accumulation": Key(_FLAG),
    "static_mode": Key(_FLAG, note=_ORDER),
    "fast_mode": Key(_FLAG, note=_ORDER),
    "tensor_parallel_seed": Key(_WHOLE, 0, least=0, note="it follows from --seed"),
    "ddp_port": Key(_WHOLE, note="torchrun chooses the port; --master-port sets it"),
}

V2 = {
    "hybrid_shard_degree": Key(_WHOLE, 0, least=0),
    "sm_activation_offloading": Key(_FLAG, False),  # True by default, but the script decides
    "activation_loading_horizon": Key(_WHOLE, 2, note=_HORIZON),
    "fsdp_cache_flush_warnings": Key(_FLAG, True, note="it printed warnings of the allocator"),
    "allow_empty_shards": Key(_FLAG, False, note="a rank may always hold an empty shard"),
    "tensor_parallel_degree": Key(_WHOLE, 1),
    "context_parallel_degree": Key(
        _WHOLE,
        1,
        only=1,
        why="the nearest is tensor_parallel_degree with sequence_parallel=True, "
        "which also splits the sequence",
    ),
    "cp_comm_type": Key(("p2p", "all_gather"), "p2p", note="there is no context axis to use it"),
    "expert_parallel_degree": Key(
        _WHOLE, 1, only=1, why="no model here has experts; the nearest is hybrid_shard_degree"
    ),
    "random_seed": Key(_WHOLE, least=0),
}

# Names that people put among the keys, though they belong elsewhere.
ELSEWHERE = {
    "fp32_residual_addition": "an argument of smp.nn.DistributedTransformerOutputLayer",
    "activation_checkpointing": "a call in the script; the plan's field is activation",
    "processes_per_host": "of mpi, beside the parameters; here it is torchrun's --nproc-per-node",
}
SCHEDULE = {"interleaved": "1f1b", "simple": "gpipe"}
