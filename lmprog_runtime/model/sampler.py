"""From logits to tokens: penalties, masks, temperature, filters, draws and log-probabilities, a batch of rows at once.

Order per row: logit_bias, repetition penalty, frequency and presence penalties, mask, temperature, then top_k, top_p
(of what top_k left, renormalised) and min_p. Log-probabilities are the model's own: of the raw logits, temperature 1.

A draw depends on its row's logits, the request's seed and the number of draws that the request has made, and on nothing
else: each takes one number from a counter-based generator, so batches, preemption and neighbours cannot shift it.

Logits on the CPU go to one call into C++ where that library is built, 5 to 40 times faster than through torch; the
torch functions here are the definition, and what runs on every other device. Both choose the same tokens, unless a
sum comes within rounding of a draw or a limit.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lmprog_runtime.ops import kernels_for
from lmprog_runtime.ops.sampling import NativeSampler, RowState, native_sampler
from lmprog_runtime.request import SamplingParams, TokenLogprob

_MASK64 = (1 << 64) - 1
_FIRST_CANDIDATES = 64
_BLOCK = 64


class Sampled(NamedTuple):
    token_id: int
    logprob: float | None  # None unless the request wants logprobs
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first


class DeadEnd(NamedTuple):
    """No token can be chosen for this row."""

    reason: str


class SamplerState:
    """What sampling remembers of one request: its tokens, for the penalties, and how many draws it has made."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], seed: int | None = None) -> None:
        """Without a seed, here or in `params`, a random one is taken, so that equal requests differ."""
        self.params = params
        chosen = seed if seed is not None else params.seed
        self.seed = secrets.randbits(64) if chosen is None else chosen & _MASK64
        self.draws = 0
        self._sequence = _mix(self.seed)
        self._penalised = _Penalised(prompt_ids) if _has_penalties(params) else None
        self._row: RowState | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether `observe` is to be called."""
        return self._penalised is not None

    def observe(self, token_id: int) -> None:
        """A token joined the output, sampled or forced."""
        if self._penalised is not None:
            self._penalised.add(token_id)

    @property
    def has_edits(self) -> bool:
        """Whether `adjust` changes anything."""
        return bool(self.params.logit_bias) or self._penalised is not None

    def skip_draw(self) -> None:
        """A token came without a draw: the next one gets the number that it would have had after a draw."""
        self.draws += 1

    def next_uniform(self) -> float:
        """A number in [0, 1) with 53 bits: the next of this request's own sequence. Source: SplitMix64 (Steele et al.,
        2014), its output function applied to seed and counter."""
        bits = _mix(self._sequence + self.draws)
        self.draws += 1
        return (bits >> 11) * 2.0**-53

    def adjust(self, row: Tensor) -> None:
        """Apply bias and penalties to this request's row of logits [vocab], in place."""
        params = self.params
        if params.logit_bias:
            row[_indices(params.logit_bias, row)] += torch.tensor(list(params.logit_bias.values()), device=row.device)
        if self._penalised is None:
            return
        if params.repetition_penalty != 1.0:
            ids = _indices(self._penalised.seen_ids, row)
            values = row[ids]
            row[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        ids, counts = _indices(self._penalised.count_ids, row), torch.tensor(self._penalised.counts, device=row.device)
        row[ids] -= counts * params.frequency_penalty + params.presence_penalty

    def native_row(self, mask: NDArray[np.uint32] | None, logits: Tensor) -> RowState:
        """The same for the C++ sampler, made ready for one draw under this mask from a row of `logits`."""
        row = self._row
        if row is None:
            row = self._row = RowState(self.params, logits.shape[1], self._sequence)
        if mask is not row.mask:
            row.set_mask(mask)
        if row.draws:
            row.struct.draw = self.draws
            self.draws += 1
        if self._penalised is not None:
            row.set_penalised(
                self._penalised.seen_ids.buffer_info(),
                self._penalised.count_ids.buffer_info(),
                self._penalised.counts.buffer_info(),
            )
        return row


class _Penalised:
    """The tokens that penalties apply to, in arrays that grow as the output does."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.seen_ids = array("i", dict.fromkeys(prompt_ids))  # of prompt and output, each once
        self.count_ids = array("i")  # of the output, each once
        self.counts = array("f")  # how often each of them came
        self._seen = set(self.seen_ids)
        self._place: dict[int, int] = {}

    def add(self, token_id: int) -> None:
        if token_id not in self._seen:
            self._seen.add(token_id)
            self.seen_ids.append(token_id)
        if token_id not in self._place:
            self._place[token_id] = len(self.counts)
            self.count_ids.append(token_id)
            self.counts.append(0.0)
        self.counts[self._place[token_id]] += 1.0


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def sample(
    logits: Tensor, states: Sequence[SamplerState], masks: Sequence[NDArray[np.uint32] | None]
) -> list[Sampled | DeadEnd]:
    """Choose one token per row of logits [rows, vocab] float32, which are left as they are.

    masks[i] is None or [words] uint32 whose bit t % 32 of word t // 32 says that token t is allowed; tokens past its
    end are not. A row that allows nothing, or whose logits are not finite, gives a DeadEnd and touches no other row.
    """
    native = _native_for(logits)
    if native is None or not states:
        return sample_in_torch(logits, states, masks)
    rows = [state.native_row(mask, logits) for state, mask in zip(states, masks, strict=True)]
    native.sample(logits, rows, torch.get_num_threads())
    return [_sampled(row, mask) for row, mask in zip(rows, masks, strict=True)]


def _native_for(logits: Tensor) -> NativeSampler | None:
    return native_sampler() if logits.is_cpu and logits.is_contiguous() else None


def _sampled(row: RowState, mask: NDArray[np.uint32] | None) -> Sampled | DeadEnd:
    token_id = row.struct.token
    if token_id < 0:
        return DeadEnd(_reason(mask))
    return Sampled(token_id, *row.logprobs()) if row.wants_logprob else Sampled(token_id, None, ())


def sample_in_torch(
    logits: Tensor, states: Sequence[SamplerState], masks: Sequence[NDArray[np.uint32] | None]
) -> list[Sampled | DeadEnd]:
    """`sample`, in torch."""
    if not states:
        return []
    adjusted = _adjusted(logits, states, masks)
    tokens = _largest_column(adjusted)
    best = adjusted.gather(1, tokens.unsqueeze(1)).squeeze(1)
    is_alive = torch.isfinite(best).tolist()
    drawn = [row for row, state in enumerate(states) if is_alive[row] and state.params.temperature > 0]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        rows = adjusted if len(drawn) == len(states) else adjusted[index]
        chosen = _draw(rows - best[index].unsqueeze(1), [states[row] for row in drawn])
        tokens = tokens.index_copy(0, index, chosen)
    found = _with_logprobs(logits, tokens, states)
    return [
        sampled if alive else DeadEnd(_reason(masks[row]))
        for row, (sampled, alive) in enumerate(zip(found, is_alive, strict=True))
    ]


def token_logprobs(logits: Tensor, token_ids: Sequence[int], top_k: int) -> list[TokenLogprob]:
    """Natural-log probability of token_ids[i] under logits[i], and the top_k best; logits [rows, vocab] float32."""
    native = _native_for(logits)
    if native is None:
        return token_logprobs_in_torch(logits, token_ids, top_k)
    scored = native.score(logits, token_ids, top_k, torch.get_num_threads())
    return [TokenLogprob(token_id, *entry) for token_id, entry in zip(token_ids, scored, strict=True)]


def token_logprobs_in_torch(logits: Tensor, token_ids: Sequence[int], top_k: int) -> list[TokenLogprob]:
    """`token_logprobs`, in torch."""
    found: list[TokenLogprob] = []
    for start in range(0, len(token_ids), 64):  # blocks of rows bound the temporary copies of the logits
        ids = torch.as_tensor(token_ids[start : start + 64], device=logits.device)
        rows = logits[start : start + len(ids)]
        normaliser = rows.logsumexp(-1, keepdim=True)
        chosen = (rows.gather(1, ids.unsqueeze(1)) - normaliser).squeeze(1)
        best, best_ids = rows.topk(top_k, dim=-1)
        pairs = zip(best_ids.tolist(), (best - normaliser).tolist(), strict=True)
        found += (
            TokenLogprob(token_id, logprob, tuple(zip(top_ids, top_values, strict=True)))
            for token_id, logprob, (top_ids, top_values) in zip(ids.tolist(), chosen.tolist(), pairs, strict=True)
        )
    return found


def _adjusted(logits: Tensor, states: Sequence[SamplerState], masks: Sequence[NDArray[np.uint32] | None]) -> Tensor:
    """Logits with bias, penalties and masks; the caller's own when no row has any."""
    changed = [row for row, state in enumerate(states) if state.has_edits]
    masked = [row for row, mask in enumerate(masks) if mask is not None]
    if not changed and not masked:
        return logits
    adjusted = logits.clone()
    for row in changed:
        states[row].adjust(adjusted[row])
    if masked:
        _apply_masks(adjusted, masked, [mask for mask in masks if mask is not None])
    return adjusted


def _apply_masks(logits: Tensor, rows: list[int], masks: list[NDArray[np.uint32]]) -> None:
    words = np.zeros((len(rows), -(-logits.shape[1] // 32)), np.uint32)
    for padded, mask in zip(words, masks, strict=True):
        padded[: len(mask)] = mask[: len(padded)]
    packed = torch.from_numpy(words.view(np.int32)).to(logits.device)
    apply_token_mask = kernels_for(logits.device.type).apply_token_mask
    if len(rows) == len(logits):
        apply_token_mask(logits, packed)
    else:
        part = logits[rows]
        apply_token_mask(part, packed)
        logits[rows] = part


def _largest_column(logits: Tensor) -> Tensor:
    """[rows] int64; not a finite value's column only if the row has none. On the CPU numpy takes 3 us where torch takes
    44 (49,152 columns)."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(logits: Tensor, states: Sequence[SamplerState]) -> Tensor:
    """Token ids [rows]; the largest of each row of logits [rows, vocab] is 0. The logits are overwritten."""
    temperatures = [state.params.temperature for state in states]
    scaled = logits.div_(torch.tensor(temperatures, device=logits.device).unsqueeze(1))
    uniforms = torch.tensor([state.next_uniform() for state in states], dtype=torch.float64, device=logits.device)
    filtered = [row for row, state in enumerate(states) if _is_filtered(state.params, logits.shape[1])]
    if not filtered:
        return _invert(scaled.exp_(), uniforms)
    index = torch.tensor(filtered, device=logits.device)
    chosen = _draw_filtered(scaled[index], [states[row].params for row in filtered], uniforms[index])
    if len(filtered) == len(states):
        return chosen
    return _invert(scaled.exp_(), uniforms).index_copy(0, index, chosen)


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    return params.top_p < 1 or params.min_p > 0 or 0 < params.top_k < vocab_size


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index [rows] of the first weight whose running sum passes uniform * total; a weight of 0 is never chosen.

    Sums are float64, first over blocks of 64 and then inside the block: 12 us where a running sum over 49,152 columns
    takes 66.
    """
    blocks = functional.pad(weights, (0, -weights.shape[1] % _BLOCK)).view(len(weights), -1, _BLOCK)
    block_sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniforms * block_sums[:, -1]
    block = _first_above(block_sums, target)
    before = functional.pad(block_sums, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, 1, _BLOCK)).squeeze(1).cumsum(-1, dtype=torch.float64)
    return (block * _BLOCK + _first_above(inside, target - before.squeeze(1))).squeeze(1)


def _first_above(sums: Tensor, target: Tensor) -> Tensor:
    """[rows, 1]: first column of the rising `sums` [rows, columns] above the target, if need be the last that rises."""
    limit = torch.nextafter(sums[:, -1], torch.zeros_like(target))
    return torch.searchsorted(sums, torch.minimum(target, limit).unsqueeze(1), right=True)


def _draw_filtered(scaled: Tensor, params: list[SamplingParams], uniforms: Tensor) -> Tensor:
    """Draw among the tokens that the filters keep. Every filter keeps a prefix of the tokens in falling order, so a few
    of the largest mostly suffice; a row for which they do not is looked at as a whole."""
    size = min(scaled.shape[1], max(_FIRST_CANDIDATES, *(p.top_k + 1 for p in params)))
    mass = scaled.exp().sum(-1, dtype=torch.float64)
    values, ids = _largest(scaled, size)
    tokens, is_short = _draw_kept(values, ids, mass, params, uniforms)
    if size == scaled.shape[1]:
        return tokens
    for row in is_short.nonzero()[:, 0].tolist():
        columns = _columns_that_suffice(scaled[row], mass[row], params[row])
        values, order = scaled[row, columns].sort(descending=True, stable=True)
        part = slice(row, row + 1)
        tokens[part], _ = _draw_kept(values[None], columns[order][None], mass[part], params[part], uniforms[part])
    return tokens


def _draw_kept(
    values: Tensor, ids: Tensor, mass: Tensor, params: list[SamplingParams], uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Token ids [rows], and whether further candidates could have changed the outcome: more might be kept, or equal
    ones that were left out might come before these."""
    is_kept = _kept(values, mass, params)
    weights = values.exp().masked_fill(~is_kept, 0.0)
    tokens = ids.gather(1, _invert(weights, uniforms).unsqueeze(1)).squeeze(1)
    last_kept = values.gather(1, is_kept.sum(-1, keepdim=True) - 1).squeeze(1)
    return tokens, last_kept == values[:, -1]


def _columns_that_suffice(row: Tensor, mass: Tensor, params: SamplingParams) -> Tensor:
    """Columns of one row [vocab] that hold all that the filters can keep, by a histogram: 1.2 ms per draw from a wide
    distribution, where sorting the row took 10."""
    buckets = (row * -16).clamp(max=1023).long()
    masses = torch.zeros(1024, dtype=torch.float64, device=row.device).index_add_(0, buckets, row.exp().double())
    limits = [1023]
    if params.min_p > 0:
        limits.append(int(-16 * math.log(params.min_p)))
    if params.top_k > 0:
        counts = torch.bincount(buckets, minlength=1024).cumsum(0)
        limits.append(int((counts < params.top_k).sum()))
    elif params.top_p < 1:
        # a little more than asked for, since this sum and the exact one round differently
        limits.append(int((masses.cumsum(0) < params.top_p * mass * (1 + 1e-9)).sum()))
    return (buckets <= min(limits)).nonzero()[:, 0]


def _kept(values: Tensor, mass: Tensor, params: list[SamplingParams]) -> Tensor:
    """Which candidates pass; values [rows, candidates] fall from 0, mass [rows] is the sum of exp over all tokens."""

    def column(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=values.device).unsqueeze(1)

    size = values.shape[1]
    top_k = column([p.top_k if p.top_k > 0 else size for p in params])
    in_top_k = (torch.arange(size, device=values.device) < top_k) & torch.isfinite(values)
    weights = values.exp().double() * in_top_k
    sums = weights.cumsum(-1)
    total = torch.where(column([p.top_k for p in params]) > 0, sums[:, -1:], mass.unsqueeze(1))
    top_p = column([p.top_p for p in params])
    in_top_p = (sums - weights < top_p * total) | (top_p >= 1)
    return in_top_k & in_top_p & (values.exp() >= column([p.min_p for p in params]))


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(values, columns) of the `count` largest per row, falling, equal ones in the order of their columns (among equals
    at the end of the list, any). The largest of all lie in the blocks with the largest maxima, so only those are
    searched: 3 times faster than topk for 64 of 49,152."""
    vocab = values.shape[1]
    if count * _BLOCK >= vocab:
        best, columns = values.sort(dim=-1, descending=True, stable=True)
        return best[:, :count], columns[:, :count]
    padded = functional.pad(values, (0, -vocab % _BLOCK), value=-torch.inf)
    blocks = padded.view(len(values), -1, _BLOCK)
    block_ids = blocks.amax(-1).topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    found = blocks.gather(1, block_ids.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1)
    place = found.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    best, order = found.gather(1, place).sort(dim=-1, descending=True, stable=True)
    place = place.gather(1, order)
    return best, block_ids.gather(1, place // _BLOCK) * _BLOCK + place % _BLOCK


def _with_logprobs(logits: Tensor, tokens: Tensor, states: Sequence[SamplerState]) -> list[Sampled]:
    found = [Sampled(token, None, ()) for token in tokens.tolist()]
    rows = [row for row, state in enumerate(states) if state.params.logprobs or state.params.top_logprobs]
    if rows:
        most = min(max(states[row].params.top_logprobs for row in rows), logits.shape[1])
        entries = token_logprobs_in_torch(logits[rows], [found[row].token_id for row in rows], most)
        for row, entry in zip(rows, entries, strict=True):
            found[row] = Sampled(entry.token_id, entry.logprob, entry.top[: states[row].params.top_logprobs])
    return found


def _reason(mask: NDArray[np.uint32] | None) -> str:
    if mask is not None and not mask.any():
        return "The constraint allows no further token here; it cannot be satisfied with this tokenizer."
    return "The model gave no finite logit for any token that is allowed here; its weights or dtype overflow."


def _indices(ids: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64, device=row.device)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
