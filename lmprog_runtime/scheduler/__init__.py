"""The scheduler: which tokens are computed in the next step, and for whom. No torch."""

from lmprog_runtime.scheduler.batch import ScheduledStep, StepOutput
from lmprog_runtime.scheduler.cascade import CascadeRule
from lmprog_runtime.scheduler.chunk import Chunk
from lmprog_runtime.scheduler.config import SchedulerConfig
from lmprog_runtime.scheduler.loop import Scheduler, SchedulerCounters
from lmprog_runtime.scheduler.sequence import Sequence, State
from lmprog_runtime.scheduler.trie import TokenTree

__all__ = [
    "CascadeRule",
    "Chunk",
    "ScheduledStep",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerCounters",
    "Sequence",
    "State",
    "StepOutput",
    "TokenTree",
]
