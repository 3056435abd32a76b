"""Settings of the scheduler layer."""

from __future__ import annotations

from dataclasses import dataclass

from lmprog_runtime.scheduler.cascade import CascadeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    context_length: int  # longest sequence the model can take
    step_tokens: int = 512  # most rows of one step
    max_running: int = 64  # most sequences in one step
    policy: str = "fcfs"
    aging_tokens: int = 8192  # a request that later ones have overtaken by so many is served in order of arrival
    decode_reserve: int = 16  # slots kept free per running sequence when another one is admitted
    growth_run: int = 32  # slots that a growing row takes at once, so that its slots lie in runs
    cascade: CascadeRule | None = None  # when rows that share a prefix attend to it together; None: never

    def __post_init__(self) -> None:
        for name in ("context_length", "step_tokens", "max_running"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.step_tokens < self.max_running:
            raise ValueError(
                f"step_tokens ({self.step_tokens}) is less than max_running ({self.max_running}): not every running "
                "sequence could be given a token per step; raise the one or lower the other."
            )
