"""Every message of a rank in one training step.

for message in rank_messages(job, rank=0): print(message)
"""

from helpers.planner.model.training_job import Job
from helpers.planner.time.context_messages import context_messages
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import Message
from helpers.planner.time.pipeline_messages import pipeline_messages
from helpers.planner.time.tensor_messages import shared_messages, tensor_messages


def rank_messages(job: Job, rank: int) -> list[Message]:
    """Those of pipeline rank `rank`; its first tensor and data rank."""
    messages = (
        *tensor_messages(job, rank),
        *context_messages(job, rank),
        *shared_messages(job, rank),
        *pipeline_messages(job, rank),
        *data_messages(job, rank),
    )
    return [sent for sent in messages if sent.count and sent.payload_bytes and sent.ranks > 1]
