"""DeepSpeed's ZeRO on CPU, with PyTorch's AdamW as the optimizer that it shards."""

from typing import Any

from torch import Tensor

from benchmarks.work import CLIP, Work, adamw, plain_model, rows


class Peer:
    """`stage`: 1, 2 or 3."""

    def __init__(self, work: Work, rank: int, ranks: int, stage: int) -> None:
        import deepspeed

        self.rank, self.ranks = rank, ranks
        model = plain_model(work)
        settings: dict[str, Any] = {
            "train_batch_size": work.batch,
            "train_micro_batch_size_per_gpu": work.batch // ranks,
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": stage, "overlap_comm": True},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=adamw(model.named_parameters()),
            config=settings,
            dist_init_required=False,
        )

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        ids = rows(ids, self.rank, self.ranks)
        loss = self.engine(input_ids=ids, labels=ids).loss
        self.engine.backward(loss)
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        return loss.item(), None if norm is None else float(norm)

    def state(self) -> dict[str, int]:
        return {}
