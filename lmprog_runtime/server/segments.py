"""What `RuntimeEndpoint` sends in place of text: the pieces that a program's stream holds, turned into ids here, by the
same code as for programs on this machine, so that both get the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field, StrictInt

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.boundaries import Healed, JointSplit, heal_tail, joint_split
from lmprog_runtime.params import check_token_ids
from lmprog_runtime.pending_text import commit
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.prompts import check_length
from lmprog_runtime.server.protocol import Ids, Strict

Roles = Annotated[list[str], Field(min_length=1, max_length=10_000)]


class Turn(Strict):
    """A control piece: the opening or closing of the last of these turns, or a control token by its name."""

    open: Roles | None = None
    close: Roles | None = None
    special: str | None = None


Segment = str | StrictInt | Turn
Segments = Annotated[list[Segment], Field(max_length=100_000)]


def healed(runtime: LocalRuntime, ids: Ids, segments: Sequence[Segment], heal: bool | None) -> Healed:
    """Prompt of a generation: committed ids, then segments."""
    return heal_tail(runtime.tokenizer, *_committed(runtime, ids, segments), heal)


def split(runtime: LocalRuntime, ids: Ids, segments: Sequence[Segment], choices: Sequence[str]) -> JointSplit:
    """Prompt and choices of a score."""
    return joint_split(runtime.tokenizer, *_committed(runtime, ids, segments), choices)


def _committed(runtime: LocalRuntime, ids: Ids, segments: Sequence[Segment]) -> tuple[list[int], str]:
    check_token_ids("input_ids", tuple(ids), runtime.executor.vocab_size)
    check_length(runtime, sum(len(segment) for segment in segments if isinstance(segment, str)))
    return commit(runtime.tokenizer, ids, _joined(piece for segment in segments for piece in _pieces(runtime, segment)))


def _joined(pieces: Iterable[int | str]) -> list[int | str]:
    joined: list[int | str] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined


def _pieces(runtime: LocalRuntime, segment: Segment) -> Sequence[int | str]:
    if isinstance(segment, str):
        return [segment]
    if isinstance(segment, int):
        check_token_ids("segments", (segment,), runtime.executor.vocab_size)
        return [segment]
    if segment.special is not None:
        return [_special(runtime, segment.special)]
    if segment.open is not None:
        return runtime.chat.opening_segments(tuple(segment.open))
    if segment.close is not None:
        return runtime.chat.closing_segments(tuple(segment.close))
    raise RequestRefused("A segment is a text, a token id, or one of open, close and special.")


def _special(runtime: LocalRuntime, name: str) -> int:
    try:
        return runtime.tokenizer.special_id(name)
    except ValueError as error:
        raise RequestRefused(str(error)) from error
