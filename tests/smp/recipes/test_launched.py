"""Estimators that name a recipe: its run on their machines, or why there is none."""

import pytest

from helpers.leave.report import report
from helpers.smp.leaving import leave
from tests.smp.recipes.texts import FULL, HF

JOB = """
from sagemaker.pytorch import PyTorch
{before}
PyTorch(base_job_name="tuned", instance_type="ml.p5.48xlarge", instance_count=4, max_run=7200,
    training_recipe={recipe}, recipe_overrides={overrides})
"""
MODEL_TRAINER = """
from sagemaker.modules.configs import Compute
from sagemaker.modules.train import ModelTrainer
ModelTrainer.from_recipe(training_recipe="training/llama/hf_llama",
    compute=Compute(instance_type="ml.p5.48xlarge", instance_count=4),
    recipe_overrides={"model": {"train_batch_size": 4}})
"""


@pytest.fixture
def job(file):
    def writing(recipe='"training/llama/hf_llama"', overrides="None", before=""):
        return file(JOB.format(recipe=recipe, overrides=overrides, before=before), "job.py")

    return writing


def test_without_its_recipe_an_estimator_is_no_run(job):
    """It was one without model, batch or plan, a rank on each machine."""
    found = leave([job()])
    assert found.jobs[0].plan is None
    assert "recipe training/llama/hf_llama, which is not among the files" in found.jobs[0].refused
    text = report(found)
    assert "helpers.train" not in text and "Plan:" not in text
    [line] = [line for line in found.lines if line.text.startswith("training_recipe")]
    assert line.verdict == "converted" and "give the recipe" in line.by_hand


@pytest.mark.parametrize("where", ["given", "beside", "recipes"])
def test_a_recipe_that_is_there_is_the_run_on_the_estimator_s_machines(where, job, write):
    folder = {"given": "elsewhere/training", "beside": "training", "recipes": "recipes/training"}
    recipe = write(HF, f"{folder[where]}/llama/hf_llama.yaml")
    over = "{'model': {'train_batch_size': 4, 'something_new': 1}, 'trainer': {'max_steps': 9}}"
    found = leave([job(overrides=over), *([recipe] if where == "given" else [])])
    [run] = found.jobs  # the recipe is no run of its own beside it
    assert (run.name, run.minutes, str(run.machines)) == (
        "tuned", 120, "4 x p5.48xlarge, 8 ranks each",
    )  # fmt: skip
    assert (run.plan.tp, run.plan.dp_shard, run.plan.world_size) == (2, 8, 32)
    assert (run.flags["steps"], run.flags["batch_size"]) == (9, 4 * run.plan.dp)
    lines = {line.text: line.place.file for line in found.lines}
    assert lines["model.train_batch_size: 4"].endswith("job.py")  # where the override stands
    assert "model.train_batch_size: 2" not in lines
    assert lines["model.optim.lr: 0.0001"].endswith("hf_llama.yaml")


def test_a_model_trainer_is_made_of_a_recipe_too(tmp_path, write):
    path = tmp_path / "job.py"
    path.write_text(MODEL_TRAINER)
    assert "not among the files" in leave([path]).jobs[0].refused
    [run] = leave([path, write(HF, "hf_llama.yaml")]).jobs
    assert (run.machines.instance, run.flags["batch_size"]) == ("p5.48xlarge", 4 * run.plan.dp)


def test_an_override_takes_the_place_of_what_stands_there_and_of_references_to_it(job, write):
    """peft_config is null in the recipe, and a reference follows the new value."""
    text = FULL.replace("model_type: llm_finetuning_aws", 'model_type: "${kind}"')
    recipe = write(f"kind: verl\n{text}", "llama/whole.yaml")
    over = "{'kind': 'llm_finetuning_aws', 'training_config': {'model_config': {'peft_config': "
    over += "{'peft_type': 'lora', 'r': 8, 'lora_alpha': 16}}}}"
    [run] = leave([job('"llama/whole"', over), recipe]).jobs
    assert not run.refused and (run.flags["lora_rank"], run.flags["merge"]) == (8, True)


@pytest.mark.parametrize(
    ("recipe", "overrides", "before", "asked"),
    [
        ("which", "None", "", "which"),
        ('"training/llama/hf_llama"', "changes", "", "changes"),
        ('"training/llama/hf_llama"', "{'model': {'seed': seed}}", "", "seed"),
    ],
)
def test_what_is_not_in_the_file_is_asked_for(recipe, overrides, before, asked, job, write):
    paths = [job(recipe, overrides, before), write(HF, "training/llama/hf_llama.yaml")]
    found = leave(paths)
    assert found.jobs[-1].plan is None and found.asked == [asked]
    assert f"--set {asked}=VALUE" in report(found)
    answer = {"which": "training/llama/hf_llama", "changes": {}, "seed": 3}[asked]
    [run] = leave(paths, {asked: answer}).jobs
    assert run.plan is not None and run.flags.get("seed") == (3 if asked == "seed" else None)


def test_an_override_that_is_left_out_is_asked_for_in_vain_by_nobody(job, write):
    write(HF, "training/llama/hf_llama.yaml")
    [run] = leave([job(overrides="{'run': {'results_dir': folder}}")]).jobs
    assert run.plan is not None and not run.asked


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: {name: a}\nevaluation: {task: qa}\n", "is no recipe"),
        (HF.replace("model_type: hf", "model_type: amazon.nova"), "its model is closed"),
    ],
)
def test_a_recipe_for_something_else_refuses_the_run_alone(text, words, job, write):
    write(text, "training/llama/hf_llama.yaml")
    [run] = leave([job()]).jobs
    assert run.plan is None and words in run.refused


@pytest.mark.parametrize("name", ['"../" * 99 + "x"', '"x" * 9000', '"a\\0b"', '"s3://a/b.yaml"'])
def test_names_that_no_recipe_has_are_no_files(name, job):
    assert "not among the files" in leave([job(name)]).jobs[0].refused
