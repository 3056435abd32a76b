"""What each kind of node does when it is appended to a state: its checks, the variable it sets, the step it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmprog.backends.base import GenerateCall
from lmprog.beam import BeamStep, needs_of
from lmprog.context import branch_seed
from lmprog.errors import InvalidArgument
from lmprog.nodes import Block, Gen, Node, RoleBegin, RoleEnd, Select, Special, Text
from lmprog.reasoning import ReasonedStep, reasoning_name
from lmprog.record import Record
from lmprog.samples import SamplesStep
from lmprog.sampling import Sampling
from lmprog.steps import GenStep, RoleBeginStep, RoleEndStep, SelectStep, SpecialStep, TextStep
from lmprog.variables import Computed, Written

if TYPE_CHECKING:
    from lmprog.state import State


def append(state: State, node: Node, location: str) -> None:
    for part in node.nodes if isinstance(node, Block) else (node,):
        _APPEND[type(part)](state, part, location)


def _append_text(state: State, node: Text, location: str) -> None:
    if node.text:
        state._submit(TextStep(Record("text", text=node.text, location=location)))


def _append_special(state: State, node: Special, location: str) -> None:
    state._run.require(("special",))
    state._submit(SpecialStep(Record("special", text=node.token, location=location)))


def _append_role_begin(state: State, node: RoleBegin, location: str) -> None:
    state._run.require(("roles",))
    if state._open_role is not None:
        raise InvalidArgument(f"A {node.role} turn cannot begin inside the {state._open_role} turn; end that first.")
    state._open_role = node.role
    state._submit(RoleBeginStep(Record("role_begin", node.role, location=location)))


def _append_role_end(state: State, node: RoleEnd, location: str) -> None:
    if state._open_role != node.role:
        raise InvalidArgument(f"There is no open {node.role} turn to end; open is {state._open_role or 'none'}.")
    state._open_role = None
    state._submit(RoleEndStep(Record("role_end", node.role, location=location)))


def _append_gen(state: State, node: Gen, location: str) -> None:
    state._run.require_sampling(node.sampling)
    state._run.require(_needs_of(node))
    sampling = _effective(state, node.sampling)
    _refuse_two_ways(node, sampling)
    record = Record("gen", node.name or "", location=location)
    settings = state._run.settings
    call = GenerateCall(
        sampling, node.constraint, node.heal, wants_deltas=settings.wants_deltas, routing=settings.routing
    )
    if _samples_of(sampling) > 1:
        samples = SamplesStep(record, call, node.convert)
        state._declare(node.name, Computed(lambda: record.status == "done", samples.value, record))
        state._submit(samples)
    else:
        _append_one_text(state, node, record, replace(call, sampling=replace(sampling, n=None, best_of=None)))


def _samples_of(sampling: Sampling) -> int:
    return max(sampling.n or 1, sampling.best_of or 1)


def _refuse_two_ways(node: Gen, sampling: Sampling) -> None:
    """Each of these decides how a gen is written. Only here is all of it known: samples may be the run's wish."""
    ways = {
        "several samples (n, best_of)": _samples_of(sampling) > 1,
        "beam": node.beam is not None,
        "separate_reasoning": node.reasoning is not None,
    }
    wanted = [name for name, is_wanted in ways.items() if is_wanted]
    if len(wanted) > 1:
        raise InvalidArgument(f"One gen cannot have {wanted[0]} and {wanted[1]};", hint="leave out one of them.")


def _append_one_text(state: State, node: Gen, record: Record, call: GenerateCall) -> None:
    if node.reasoning is not None:
        _append_reasoned(state, node, record, call)
        return
    if node.beam is not None:
        state._run.require_sampling(needs_of(node.beam))
    state._declare(node.name, Written(node.name or "", record, node.convert))
    state._submit(GenStep(record, call) if node.beam is None else BeamStep(record, call, node.beam))


def _append_reasoned(state: State, node: Gen, record: Record, call: GenerateCall) -> None:
    assert node.reasoning is not None
    thoughts = Record("gen", reasoning_name(node.name or ""), location=record.location)
    if node.name is not None:
        state._declare(node.name, Written(node.name, record, node.convert))
        state._declare(thoughts.name, Written(thoughts.name, thoughts))
    state._submit(ReasonedStep(record, call, thoughts, node.reasoning))


def _append_select(state: State, node: Select, location: str) -> None:
    state._run.require(("score",))
    record = Record("select", node.name or "", location=location)
    state._declare(node.name, Written(node.name or "", record))
    state._submit(SelectStep(record, node, _effective(state, Sampling(seed=node.seed)).seed))


def _needs_of(node: Gen) -> list[str]:
    needs: list[str] = [] if node.constraint is None else [node.constraint.kind]
    return needs if node.heal is None else [*needs, "heal"]


def _effective(state: State, own: Sampling) -> Sampling:
    """A step's own parameters over those of the state; in a branch, with the branch's own seed."""
    merged = own.over(state._sampling)
    if merged.seed is None or not state._path:
        return merged
    return replace(merged, seed=branch_seed(merged.seed, state._path))


_APPEND: dict[type[Node], Callable[[State, Any, str], None]] = {
    Text: _append_text,
    Gen: _append_gen,
    Select: _append_select,
    RoleBegin: _append_role_begin,
    RoleEnd: _append_role_end,
    Special: _append_special,
}
