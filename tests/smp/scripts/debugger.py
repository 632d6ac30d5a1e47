"""Hooks, annotations and XLA loops of a training script, with the verdicts of each line."""

import smdebug.pytorch as smd  # converted
import smppy  # converted
import torch
import torch_xla.core.xla_model as xm  # left out
import torch_xla.distributed.parallel_loader as pl  # left out
from smdebug.profiler.utils import str2bool  # left out
from smdebug.pytorch import get_hook  # left out
from smdebug.trials import create_trial  # converted
from torch_xla.amp.syncfree import AdamW  # converted

hook = get_hook(create_if_not_exists=True)  # left out
profiler = smppy.SMProfiler.instance()  # converted
profiler.configure(smppy.Config())  # left out x2
model = torch.nn.Linear(2, 2).to(xm.xla_device())  # converted
hook.register_loss(torch.nn.CrossEntropyLoss())  # left out
hook.set_mode(smd.modes.TRAIN)  # left out x2
hook.save_scalar("accuracy", 1.0)  # converted
hook.save_tensor("weights", model.weight)  # refused
optimizer = AdamW(model.parameters())  # converted
profiler.start_profiling()  # converted
for batch in pl.MpDeviceLoader([], xm.xla_device()):  # converted, left out
    with smppy.annotate("forward"):  # converted
        model(batch).sum().backward()
    xm.optimizer_step(optimizer)  # converted
    xm.mark_step()  # left out
profiler.stop_profiling()  # converted
trial = create_trial("s3://a-bucket/tensors")  # converted
print(trial.tensor_names(), trial.tensor("loss").values(), str2bool)  # converted x3, left out
