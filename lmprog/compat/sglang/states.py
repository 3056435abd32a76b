"""SGLang's `ProgramState` on lmprog's `State`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from lmprog.errors import InvalidArgument
from lmprog.forks import Branches, JoinMode
from lmprog.program import Run
from lmprog.state import State


class ProgramState:
    def __init__(self, state: State) -> None:
        self.lmprog_state = state

    def __repr__(self) -> str:
        return f"ProgramState({self.text()})"

    # -- appending ------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> ProgramState:
        if other is None:
            raise InvalidArgument("None cannot be appended to a state.")
        state = self.lmprog_state
        state += other
        return self

    def system(self, expr: Any = None) -> Any:
        return self.lmprog_state.system(expr)

    def user(self, expr: Any = None) -> Any:
        return self.lmprog_state.user(expr)

    def assistant(self, expr: Any = None) -> Any:
        return self.lmprog_state.assistant(expr)

    def var_scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.lmprog_state.var_scope(name)

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ProgramStateGroup:
        if position_ids_offset is not None:
            raise InvalidArgument("Positions cannot be shifted; leave position_ids_offset out.")
        return ProgramStateGroup(self.lmprog_state.fork(size))

    @contextlib.contextmanager
    def copy(self, position_ids_offset: Sequence[int] | None = None) -> Iterator[ProgramState]:
        group = self.fork(1, position_ids_offset)
        try:
            yield group[0]
        finally:
            group.join()

    # -- reading --------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.lmprog_state[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.lmprog_state[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self.lmprog_state

    get_var = __getitem__
    set_var = __setitem__

    def text(self) -> str:
        return self.lmprog_state.text()

    def messages(self) -> list[dict[str, Any]]:
        return self.lmprog_state.messages()

    def sync(self) -> None:
        self.lmprog_state.sync()

    def error(self) -> BaseException | None:
        return self.lmprog_state.error()

    @property
    def ret_value(self) -> Any:
        assert isinstance(self.lmprog_state, Run), "branches return nothing"
        return self.lmprog_state.ret_value

    def get_meta_info(self, name: str) -> dict[str, Any]:
        return meta_info(self.lmprog_state.get_meta_info(name))

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        return self.lmprog_state.text_iter(var_name)

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """With return_meta_data one piece, when its numbers are known, else as they come."""
        pieces: list[str] | None = [] if return_meta_data else None
        async for piece in self.lmprog_state.text_async_iter(var_name):
            if pieces is None:
                yield piece
            else:
                pieces.append(piece)
        if pieces is not None:
            if var_name is None:
                raise InvalidArgument("return_meta_data needs the variable whose meta data you want.")
            yield "".join(pieces), self.get_meta_info(var_name)


class ProgramStateGroup:
    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        self.states = [ProgramState(state) for state in branches]

    def join(self, mode: JoinMode = "gather_variable") -> None:
        self._branches.join(mode)

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        """Only for `forks[0] += ...`, which Python ends by putting the branch back."""
        if self.states[index] is not value:
            raise InvalidArgument("A branch cannot be replaced; append to it with +=.")

    def __iadd__(self, other: Any | Callable[[int], Any]) -> ProgramStateGroup:
        branches = self._branches
        branches += other
        return self


def meta_info(found: dict[str, Any]) -> dict[str, Any]:
    """What lmprog knows of a step, and the same by SGLang's names and in its formats."""
    info = dict(found)
    if "finish_reason" in found:
        info["finish_reason"] = {"type": found["finish_reason"], "matched": found.get("matched_stop")}
    if "scores" in found:
        info["normalized_prompt_logprobs"] = list(found["scores"])
    elif found.get("logprobs"):
        info["output_token_logprobs"] = [(each.logprob, each.token_id, each.token) for each in found["logprobs"]]
        info["output_token_logprobs_length"] = len(found["logprobs"])
        info["output_top_logprobs"] = [[(p, None, token) for token, p in each.top] for each in found["logprobs"]]
    return info
