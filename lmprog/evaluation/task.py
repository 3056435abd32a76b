"""What a task is: data, a small program that asks the model about one item, and how its answer is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from lmprog.evaluation.data import Data, Item, content_hash
from lmprog.state import State

Style = Literal["plain", "chat", "turns"]
"""plain: text to go on with. chat: the examples and the question are one user turn. turns: each example is a user turn
and an assistant turn."""
STYLES: tuple[Style, ...] = get_args(Style)


class Outcome(NamedTuple):
    metrics: Mapping[str, float]  # name to value of this item; the result has their means
    details: Mapping[str, Any]  # what the record of the item says beside them; JSON data


class Asking(NamedTuple):
    """How the items are asked."""

    style: Style = "plain"
    samples: int = 1  # answers per item; only generation takes several
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Subclass it for a task of your own: `ask` is a program's body and may do all that programs do.

    data: see `lmprog.evaluation.data`. shots_data: where examples come from; by default the data itself, and an item
    is never an example of itself.
    """

    name: str
    data: Data
    shots_data: Data | None = None

    @abstractmethod
    def ask(self, s: State, item: Mapping[str, Any], shots: Sequence[Mapping[str, Any]], asking: Asking) -> None:
        """Write the prompt with its examples, and the model call."""

    @abstractmethod
    def score(self, s: State, item: Mapping[str, Any]) -> Outcome:
        """Read the answer."""

    def order(self, item: Mapping[str, Any]) -> str:
        """Items run sorted by this text, so that those with the longest common beginning are neighbours."""
        return content_hash(item)


def choose_shots(pool: Sequence[Item], count: int, seed: int) -> list[Item]:
    """The examples, one more than asked for, which takes the place of one that is the item itself.

    Which ones depends on the seed and on their content, not on their places in the pool. All items share them, so
    their tokens are computed once.
    """
    return sorted(pool, key=lambda each: (content_hash(each.data, f"{seed}:"), each.key))[: count + 1]


def shots_for(item: Item, chosen: Sequence[Item], count: int) -> list[Mapping[str, Any]]:
    own = item.key.partition("#")[0]
    return [shot.data for shot in chosen if shot.key.partition("#")[0] != own][:count]
