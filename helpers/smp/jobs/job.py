"""A job of the service as a run of this project: plan, flags, machines, and what is still asked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import presets
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.lookup import find_instance
from helpers.smp.distribution.mpi_options import Option, mpi_options, variables
from helpers.smp.jobs.distributions import (
    Layout,
    Machines,
    check_products,
    configured,
    layout,
    machines,
)
from helpers.smp.jobs.estimators import Estimator, part
from helpers.smp.jobs.metrics import Metric, metrics
from helpers.smp.jobs.rules import MappedRule, mapped_rules, save_interval
from helpers.smp.jobs.settings import (
    Family,
    Setting,
    Settings,
    foreign_family,
    of_script,
    plain,
)
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.sources import Place
from helpers.smp.reading.values import Made, is_known
from helpers.watch.watch import EVERY

OF_PLAN = {"precision", "activation", "offload", "compile", "microbatches", "zero_stage"}
DEEPSPEED = {"deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config"}
OF_ADAPTERS = {"lora_alpha", "lora_dropout", "quantize", "merge"}
HUB_PRESETS = {  # hub ids whose configurations come with the engine, for prices without the hub
    "eleutherai/gpt-j-6b": "gptj-6b",
    "eleutherai/gpt-neox-20b": "neox-20b",
    "togethercomputer/gpt-neoxt-chat-base-20b": "neox-20b",
    "tiiuae/falcon-7b": "falcon-7b",
    "tiiuae/falcon-40b": "falcon-40b",
    "gpt2": "gpt2",
    "openai-community/gpt2": "gpt2",
    "gpt2-xl": "gpt2-xl",
    "meta-llama/llama-2-7b-hf": "llama2-7b",
    "meta-llama/llama-2-13b-hf": "llama2-13b",
    "meta-llama/llama-2-70b-hf": "llama2-70b",
}


@dataclass
class Job:
    """One run. `refused` says why there is none; `asked` are names that the files do not give;
    `config` is the model's configuration, where a recipe has it."""

    name: str
    place: Place
    machines: Machines
    layout: Layout
    plan: ParallelPlan | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    rules: list[MappedRule] = field(default_factory=list)
    mpi: list[Option] = field(default_factory=list)
    family: Family | None = None
    config: Any = field(default=None, repr=False)
    restarts: int = 0
    minutes: int | None = None
    estimator: Estimator | None = field(default=None, repr=False)

    @property
    def refused(self) -> str:
        if self.family is not None:
            return f"{self.family.family} cannot be trained here: {self.family.words}"
        return self.layout.refused

    @property
    def asked(self) -> list[str]:
        return list(dict.fromkeys([*self.machines.asked, *self.layout.asked]))

    @property
    def preset(self) -> str | None:
        """The preset with the model's configuration, where there is one."""
        model = str(self.flags.get("model", ""))
        return model if model in presets() else HUB_PRESETS.get(model.lower())

    def run_flags(self) -> dict[str, Any]:
        """Flags of helpers.train: the plan's fields that are not the default, and the rest."""
        return {**self.flags, **(self.plan or ParallelPlan()).chosen()}


def job_of(job: Estimator, script: Interpreter | None, answers: Mapping[str, Any]) -> Job:
    """The run of an estimator.

    Args:
        script: what its entry point is, if that file was given, gone through with its arguments.
        answers: values of what the files do not say.
    """
    where = machines(job, dict(answers))
    laid = (
        Layout(refused=job.refused) if job.refused else layout(job.get("distribution"), where.ranks)
    )
    found = Job(_name(job), job.place, where, laid, estimator=job)
    _spread(found, job, script)
    given = job.get("hyperparameters")
    given = given if isinstance(given, dict) else {}
    found.mpi = mpi_options(part(job.get("distribution"), "mpi", "custom_mpi_options"))
    found.env = variables(found.mpi) | _variables(job.get("environment"))
    found.metrics = metrics(job.get("metric_definitions"))
    found.rules = mapped_rules(job.get("rules"))
    _fill(found, given, script, answers)
    _extras(found, job)
    return found


def _spread(found: Job, job: Estimator, script: Interpreter | None) -> None:
    """With device_map="auto" one process has the layers on all GPUs: stages of a pipeline here."""
    calls = script.calls.values() if script else ()
    maps = any(one.kwargs.get("device_map") == "auto" for times in calls for one in times)
    if not maps or found.machines.instance is None or job.get("distribution"):
        return
    gpus = find_instance(found.machines.instance).gpus
    if gpus > 1 and found.machines.nodes == 1:
        found.machines.nproc = gpus
        found.layout = Layout(ParallelPlan(pp=gpus), words="layers over the GPUs, one by one")


def job_of_script(
    script: Interpreter, place: Place, config: Made, answers: Mapping[str, Any]
) -> Job:
    """The run of a script alone, whose own call of smp.init has the configuration."""
    count = answers.get("processes")
    where = Machines(nodes=1, nproc=count if isinstance(count, int) else None, gpus=True)
    if where.nproc is None:
        where.asked.append("processes")
    parameters = config.args[0] if config.args else config.kwargs.get("config", {})
    ranks = where.ranks
    found = Job(place.file, place, where, configured(parameters, ranks) if ranks else Layout())
    _fill(found, {}, script, answers)
    return found


def _name(job: Estimator) -> str:
    name = job.get("base_job_name")
    return name if isinstance(name, str) and name else f"{job.kind} of {job.place}"


def _fill(
    found: Job,
    given: Mapping[Any, Any],
    script: Interpreter | None,
    answers: Mapping[str, Any],
) -> None:
    """Plan and flags from hyperparameters, and from the script's own defaults under them."""
    plan = found.layout.plan
    reader = Settings(plan.dp if plan else 1, found.layout.config)
    flags = reader.read(given)
    found.settings = list(reader.rows)
    below = Settings(plan.dp if plan else 1, found.layout.config).read(of_script(script))
    apart = {"hidden", "layers", "heads", *OF_PLAN}
    apart |= {"steps", "epochs"} if {"steps", "epochs"} & flags.keys() else set()
    flags |= {k: v for k, v in below.items() if k not in flags and k not in apart}
    _model(found, flags, given, script)
    rankless = flags.keys() & OF_ADAPTERS and "lora_rank" not in flags
    if rankless and (rank := rank_in(answers)):
        flags["lora_rank"], rankless = rank, False
    found.flags = {key: value for key, value in flags.items() if key not in OF_PLAN}
    if found.layout.config is not None:
        config = found.layout.config
        found.flags |= {"clip": config.clip} if config.clip else {}
        found.flags |= {"seed": config.seed} if config.seed is not None else {}
    if plan is None:
        return
    if file := _of_deepspeed(given):
        words = (
            f"its layout is in DeepSpeed's {file:.100}: python -m helpers.configurations reads it"
        )
        found.layout = replace(found.layout, refused=words)
        return
    if rankless:  # without it the whole model would be trained
        found.layout = replace(found.layout, asked=(*found.layout.asked, "lora_rank"))
        return
    try:
        found.plan = _planned(plan, flags, given, found)
    except UserError as error:
        found.layout = replace(found.layout, refused=str(error))


def _of_deepspeed(given: Mapping[Any, Any]) -> str:
    """The file that a hyperparameter names for DeepSpeed, which then lays out the run."""
    files = (v for k, v in given.items() if plain(str(k)) in DEEPSPEED)
    return next((file for file in files if isinstance(file, str) and file.endswith(".json")), "")


def rank_in(answers: Mapping[str, Any]) -> int | None:
    """The rank of adapters among the answers."""
    rank = answers.get("lora_rank")
    return rank if type(rank) is int and rank > 0 else None


def _planned(
    plan: ParallelPlan, flags: Mapping[str, Any], given: Mapping[Any, Any], found: Job
) -> ParallelPlan:
    """The plan with what hyperparameters say of it, where the configuration does not."""
    changes = {key: flags[key] for key in OF_PLAN & flags.keys()}
    if plan.precision != "fp32":
        changes.pop("precision", None)
    if plan.microbatches:
        changes.pop("microbatches", None)
    if "zero_stage" in changes:
        kind = str(next((v for k, v in given.items() if str(k).lower() == "fsdp"), ""))
        inside = found.machines.nproc if "hybrid" in kind else plan.world_size
        changes |= {"dp_replicate": plan.world_size // (inside or 1), "dp_shard": inside or 1}
    plan = replace(plan, **changes)
    check_products(plan, found.machines)
    return plan


def _model(
    found: Job, flags: dict[str, Any], given: Mapping[Any, Any], script: Interpreter | None
) -> None:
    """The model that is trained: a hyperparameter's, else the one that the script names."""
    names = [str(v) for k, v in given.items() if "model" in str(k).lower() and isinstance(v, str)]
    loaded = list(_loaded(script)) if script else []
    classes = [dotted for dotted, _ in loaded]
    found.family = foreign_family(*names, *classes)
    if "model" not in flags:
        named = next((name for dotted, name in loaded if name), None)
        kind = given.get("model_type")
        if named:
            flags["model"] = named
        elif isinstance(kind, str) and kind in presets():
            flags |= {"model": kind, "from_scratch": True}
    if "model" in flags and {"hidden", "layers", "heads"} & flags.keys():
        for size in ("hidden", "layers", "heads"):  # those of a model with weights are its own
            flags.pop(size, None)


def _loaded(script: Interpreter) -> Iterator[tuple[str, str]]:
    """Classes of models that a script loads, and from where."""
    for times in script.calls.values():
        dotted = times[-1].dotted
        made = dotted.endswith((".from_pretrained", ".from_config"))
        if made and ("Model" in dotted or "For" in dotted):
            first = times[-1].args[0] if times[-1].args else None
            yield dotted, first if isinstance(first, str) else ""


def _variables(environment: Any) -> dict[str, str]:
    pairs = environment.items() if isinstance(environment, dict) else ()
    return {str(name): str(value) for name, value in pairs if is_known(value)}


def _extras(found: Job, job: Estimator) -> None:
    """Compiling, watching, profiling, checkpoints, spot machines and the time limit."""
    compiler = job.get("compiler_config")
    compiles = isinstance(compiler, Made) and compiler.kwargs.get("enabled", True) is not False
    if compiles and found.plan is not None:
        found.plan = replace(found.plan, compile=True)
    if any(rule.kinds for rule in found.rules) or isinstance(job.get("debugger_hook_config"), Made):
        every = save_interval(job.get("debugger_hook_config"), job.get("rules"))
        found.flags["watch"] = every or EVERY
    profiles = any(rule.profiles for rule in found.rules)
    if profiles or isinstance(job.get("profiler_config"), Made):
        found.flags["profile"] = _steps(job.get("profiler_config"))
    if found.metrics and any(one.regex for one in found.metrics):
        found.flags.setdefault("log_every", 1)
    spot = job.get("use_spot_instances")
    if job.get("checkpoint_s3_uri") not in (None, False):
        found.flags.setdefault("checkpoint_every", 100)
        found.flags["resume"] = "auto"
    if spot is True:
        found.restarts = 3
        found.flags.setdefault("checkpoint_every", 100)
        found.flags["resume"] = "auto"
    seconds = job.get("max_run")
    if type(seconds) in (int, float) and 0 < seconds < 10**9:
        found.minutes = max(1, round(seconds / 60))


def _steps(config: Any) -> str:
    """FIRST:LAST of a profiler's configuration; the third to the sixth step without one."""
    first, count, waiting = None, None, [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Made):
            first = value.kwargs.get("start_step", first)
            count = value.kwargs.get("num_steps", count)
            waiting += [*value.args, *value.kwargs.values()]
    if isinstance(first, int) and isinstance(count, int) and first >= 0 and count > 0:
        return f"{max(1, first)}:{max(1, first) + count - 1}"
    return "3:6"
