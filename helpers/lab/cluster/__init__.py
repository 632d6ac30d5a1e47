"""The run that `launch` would start here, written for a cluster that starts it there.

    run = describe("scripts/train.py", nodes=2, nproc=8, model="neox-20b", dp_shard=16)
    slurm_script(run, minutes=240)                                  a file for sbatch
    train_job(run, image="...")                                     an object for kubectl apply -f
    sky_task(run, accelerators="A100:8")                            a task for sky launch
    estimator_arguments(run, image="...", role="...", instance_type="ml.p4d.24xlarge")
                                                                    for sagemaker.pytorch.PyTorch

Read described_run.py first, then slurm.py (and slurm.sh.in, which it fills in), kubeflow.py,
skypilot.py and sagemaker.py. Each comes to the same: an agent of torchrun on every node, `nproc`
ranks beneath each. These start and write nothing. local_slurm.py does: Slurm itself, on this
machine, to see a batch script run. Sources: slurm.schedmd.com/sbatch.html, the reference of
trainer.kubeflow.org/v1alpha1, docs.skypilot.co, sagemaker.readthedocs.io.
"""
