"""The run that `launch` would start here, written for a cluster that starts it there.

    run = describe("scripts/train.py", nodes=2, nproc=8, model="neox-20b", dp_shard=16)
    slurm_script(run, minutes=240)                                  a file for sbatch
    train_job(run, image="...")                                     an object for kubectl apply -f
    estimator_arguments(run, image="...", role="...", instance_type="ml.p4d.24xlarge")
                                                                    for sagemaker.pytorch.PyTorch

Read described_run.py first, then slurm.py (and slurm.sh.in, which it fills in), kubeflow.py and
sagemaker.py. Each comes to the same: an agent of torchrun on every node, `nproc` ranks beneath
each. Nothing is started or written here. Sources: slurm.schedmd.com/sbatch.html, the reference of
trainer.kubeflow.org/v1alpha1, sagemaker.readthedocs.io.
"""
