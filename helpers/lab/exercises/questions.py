"""The exercises of the notebooks: questions, what judges an answer, hints. Data alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helpers.lab.exercises.compiling import break_even, published_claims, trained
from helpers.lab.exercises.pipeline import one_f_one_b, plan_choice, zero_bubble
from helpers.lab.exercises.planning import bill, layout, most_machines
from helpers.lab.exercises.qlora import nf4, trainable_count, which_fits
from helpers.lab.exercises.sharding import fewest_gpus, published_bill, sharded_step
from helpers.lab.exercises.tensor import (
    Result,
    audit_of_the_published_run,
    traffic,
    vocabulary_loss,
)


@dataclass(frozen=True)
class Exercise:
    """A question, the function that judges an answer, and hints that go further one by one."""

    name: str
    question: str
    grade: Callable[[Any], Result]
    hints: tuple[str, ...]


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            name="1a traffic",
            question=(
                "GPT-J-6B (28 layers, width 4096) is trained with tp=8 on 8 samples of 1024 tokens "
                "a step, activations in bf16. How many bytes do the blocks all-reduce in one step, "
                "forward and backward together? Count each message once, at its full size; leave "
                "out embedding, head and loss."
            ),
            grade=traffic,
            hints=(
                "One message is the activation of all tokens: tokens x width x bytes a number.",
                "Look at the drawing of f and g: which of the two sends forward, which backward?",
                "GPT-J adds attention and MLP to the residual together: one sum a layer will do.",
            ),
        ),
        Exercise(
            name="1b vocabulary loss",
            question=(
                "Write loss(shards, targets): the mean cross-entropy of tokens whose logits are "
                "split by vocabulary. shards is a list with one [tokens, vocabulary/n] tensor a "
                "rank, targets is [tokens] with token ids of the whole vocabulary. No tensor may "
                "be as large as all logits together."
            ),
            grade=vocabulary_loss,
            hints=(
                "Cross-entropy of a token is log(sum of exp of its logits) - its target's logit.",
                "Subtract the largest logit of the whole vocabulary first: a maximum over shards.",
                "Rank r owns ids r·width to (r+1)·width - 1; the others add zero for that target.",
            ),
        ),
        Exercise(
            name="1c audit",
            question=(
                "From the published log (helpers.planner.published.posts.GPTJ_TENSOR_PARALLEL): "
                "what was the run's MFU, what did the job cost in dollars, and which share of the "
                "billed time was training? Answer with a dictionary of mfu, usd and training_share."
            ),
            grade=audit_of_the_published_run,
            hints=(
                "tokens a second = samples a second x sequence length, of the whole job.",
                "6·N FLOPs a token; recomputed work is the machine's, not the model's.",
                "The peak is that of 8 chips, dense, in fp16: find_gpu('A100-40').",
            ),
        ),
        Exercise(
            name="2a plan",
            question=(
                "4 ranks share a batch of 64 samples. On each rank a sample's forward takes 1 and "
                "its backward 2; every action takes 0.5 more, whatever its size. A rank has memory "
                "for the activations of 16 samples. Choose a schedule and a number of micro-"
                "batches with which a step takes at most 249.6, which is 1.3 times the time "
                "without waiting and without the 0.5. Answer with a dictionary of schedule and "
                "microbatches."
            ),
            grade=plan_choice,
            hints=(
                "try_plan('gpipe', 8) simulates one; its makespan_s and peak_bytes are judged.",
                "More micro-batches make the bubble smaller, and pay the 0.5 more often.",
                "What a rank keeps: gpipe all samples, 1f1b at most 4 micro-batches of them.",
            ),
        ),
        Exercise(
            name="2b 1f1b",
            question=(
                "Write order(rank, ranks, microbatches): what a rank does under 1F1B, as a list "
                "like ['F0', 'F1', 'B0', ...]. The simulator judges the time of a step, with "
                "backwards twice as long as forwards, and what each rank holds at once."
            ),
            grade=one_f_one_b,
            hints=(
                "Each rank starts with some forwards alone; the last rank with none.",
                "Rank r is ranks-1-r forwards ahead; then one forward and one backward in turn.",
                "There may be fewer micro-batches than a rank would like to be ahead.",
            ),
        ),
        Exercise(
            name="2c zero bubble",
            question=(
                "Write order(rank, ranks, microbatches) with the backward in halves: 'I0', the "
                "gradient of the input, for which the rank before waits, and 'W0', the gradients "
                "of the weights, for which nobody waits. F, I and W take as long. Be as fast as "
                "the engine's zero-bubble; no rank may hold more micro-batches than 1F1B's first."
            ),
            grade=zero_bubble,
            hints=(
                "Start from 1F1B: each B becomes an I, and its W comes somewhere later.",
                "In 1F1B the later ranks wait at the end: keep some W for then.",
                "Rank r does each W r micro-batches late; what is late is also held longer.",
            ),
        ),
        Exercise(
            name="3a claims",
            question=(
                "The published pair on p4d (P4D.native and P4D.compiled: .samples_per_s, "
                ".runtime_s, .steps_per_s, .batch). In percent: how many more samples a second "
                "were logged (rate), how many seconds fewer did training take (time), and how many "
                "more samples a second were trained on (counted)? Both runs took whole batches "
                "alone. Answer with a dictionary of rate, time and counted."
            ),
            grade=published_claims,
            hints=(
                "rate: ratio - 1. time: 1 - seconds over seconds.",
                "The logged samples are the rows of the data set, trained on or not.",
                "What was trained on a second: steps a second times the batch.",
            ),
        ),
        Exercise(
            name="3b trained",
            question=(
                "Write trained(rows, batch, epochs, drop_last): how many samples are trained on, "
                "and in how many optimizer steps? Return both, in this order. drop_last leaves out "
                "an epoch's last batch if it is smaller than the others."
            ),
            grade=trained,
            hints=(
                "rows // batch batches are whole; rows % batch rows are left.",
                "Without drop_last there is one more step an epoch if rows are left.",
                "Fewer rows than a batch: one small step, or none.",
            ),
        ),
        Exercise(
            name="3c break-even",
            question=(
                "Write break_even(compile_s, native_s, compiled_s): after how many whole steps is "
                "the compiled run no longer behind, with compile_s seconds before its first step? "
                "math.inf if it never catches up."
            ),
            grade=break_even,
            hints=(
                "Each step gains native_s - compiled_s.",
                "Round up: math.ceil. Take a millionth off first, floating point is not exact.",
                "A gain of nothing, or less, pays nothing back.",
            ),
        ),
        Exercise(
            name="4a trainable",
            question=(
                "Adapters of rank 16 stand beside all four linear layers of each of Falcon-7B's "
                "blocks: the fused query, key and value, the projection after attention, and the "
                "MLP's two. How many numbers are trained?"
            ),
            grade=trainable_count,
            hints=(
                "An adapter of a matrix [out, in] is A [rank, in] and B [out, rank].",
                "load_config('falcon-7b') has the widths; the MLP is four times as wide.",
                "Queries have 71 heads of 64, keys and values one head each.",
            ),
        ),
        Exercise(
            name="4b nf4",
            question=(
                "Write nf4(weights) for weights [n], n a multiple of 64: what a layer in 4 bits "
                "computes with. Each block of 64 is divided by its largest magnitude, each number "
                "moved to the nearest of LEVELS, and multiplied by the magnitude again."
            ),
            grade=nf4,
            hints=(
                "weights.view(-1, 64) has a row for each block.",
                "The distance to every level: blocks[..., None] - levels, then abs and argmin.",
                "levels[nearest] * magnitudes, and back to the shape of the weights.",
            ),
        ),
        Exercise(
            name="4c which fits",
            question=(
                "Falcon-40B is cut into four equal parts, one for each GPU of 24 GB. How many GB "
                "(1e9 bytes) of training state does each hold: trained in full in mixed precision "
                "(16 bytes a parameter), by adapters of rank 64 beside a bf16 base, and by the "
                "same beside a base in NF4? Answer with a dictionary of full, lora and qlora."
            ),
            grade=which_fits,
            hints=(
                "cost.state_bytes(parameters, 'mixed').total is the whole model's, in full.",
                "adapted_state(config, 64, base_bytes=2) is that of adapters beside a bf16 base.",
                "quantize=True puts the base's matrices in NF4. All three: divide by four.",
            ),
        ),
        Exercise(
            name="5a fewest GPUs",
            question=(
                "GPT-NeoX-20B is trained with AdamW in mixed precision: 2 bytes a parameter for "
                "itself, 2 for its gradient, 12 for the optimizer. What is the smallest number of "
                "GPUs of 80 GB (80e9 bytes) on which the state alone fits, under ZeRO-1, ZeRO-2 "
                "and ZeRO-3? Answer with a dictionary; 0 where no number is enough."
            ),
            grade=fewest_gpus,
            hints=(
                "cost.parameters(cost.model_shape(load_config('neox-20b'))) counts parameters.",
                "What is not cut does not shrink: compare it with 80 GB first.",
                "ZeRO-2 keeps 2 bytes whole and cuts 14; ZeRO-3 cuts all 16.",
            ),
        ),
        Exercise(
            name="5b sharded step",
            question=(
                "Write sharded_step(weights, gradients, lr): weights is one tensor [n], gradients "
                "a list with each rank's gradient [n]. Return a list with one chunk a rank: the "
                "weights that it owns after w - lr * (sum of gradients). Each rank may touch its "
                "own chunk of the weights and of each gradient only; n need not divide evenly."
            ),
            grade=sharded_step,
            hints=(
                "The sum over ranks of one chunk is what a reduce-scatter leaves with its owner.",
                "Chunks of ceil(n / ranks) weights, the last ones shorter or empty.",
                "torch.chunk may give fewer chunks than ranks; slices never do.",
            ),
        ),
        Exercise(
            name="5c published bill",
            question=(
                "From `published` alone (.train_s, .price, .instances, .devices, .model): what did "
                "the published run cost in dollars, how many GPU hours were they, and how many GB "
                "of state lay on each GPU under ZeRO-3 in mixed precision (16 bytes a parameter)? "
                "Answer with a dictionary of usd, gpu_hours and state_gb."
            ),
            grade=published_bill,
            hints=(
                "cost.money takes seconds, dollars an hour and a number of instances.",
                "The price is for an instance; GPU hours count each of its GPUs.",
                "cost.state_bytes(parameters, 'mixed', dp_shard=...).total is in bytes.",
            ),
        ),
        Exercise(
            name="6a bill",
            question=(
                "The same 175 billion parameters (gpt3-175b) are trained on 300e9 tokens with 64 "
                "p5.48xlarge, at 40 % of the dense bf16 peak of all their H100, counting 6·N FLOPs "
                "a token, at the EC2 price of the planner's table. How many days, and how many "
                "dollars? Answer with a dictionary of days and usd."
            ),
            grade=bill,
            hints=(
                "Seconds are FLOPs over FLOP/s: 6·N·tokens over 64 x 8 x 0.4 x the peak.",
                "find_gpu('H100').peak_flops['bf16']; cost.parameters(model_shape(config)).",
                "price('p5.48xlarge').usd_per_hour is for an instance with its 8 GPUs.",
            ),
        ),
        Exercise(
            name="6b layout",
            question=(
                "GPT-NeoX-20B, two p4d.24xlarge (16 GPUs of 40 GiB), batches of 64 x 2,048 tokens, "
                "bf16. Find fields of a ParallelPlan with which it fits and a step takes at most "
                "6.3 s by the planner. Answer with a dictionary, such as {'tp': 8, 'dp_shard': 2}."
            ),
            grade=layout,
            hints=(
                "try_layout(**fields) gives .memory.total and .time.total_s of a plan.",
                "State first: 16 bytes a parameter are 330 GB, over how many GPUs do they fit?",
                "Activations next: 'full' keeps the least of them and takes a third more time.",
            ),
        ),
        Exercise(
            name="6c most machines",
            question=(
                "Llama-2 13B is trained on 300e9 tokens in batches of 512 x 4,096 tokens, on 1, 2, "
                "4 up to 256 p4d.24xlarge, each time with the best plan found. On how many is it "
                "done soonest for at most 10 % more dollars than on the cheapest of these numbers? "
                "Answer with a dictionary of nodes, days and usd."
            ),
            grade=most_machines,
            hints=(
                "search_plans(config, make_cluster('p4d.24xlarge', nodes), 512, 4096).best.",
                "best.tokens_per_s and best.usd_per_token make days and dollars.",
                "While the speed doubles with the machines the dollars stay; find where not.",
            ),
        ),
    )
}
