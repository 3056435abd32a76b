"""A run as a page: self-contained HTML without scripts, for notebooks and files."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lmprog.record import Record
from lmprog.report.layout import ORIGINS, Choice, Entry, Origin, Piece, entry_of
from lmprog.report.page_style import PAGE_STYLE, STYLE
from lmprog.report.terminal import in_words
from lmprog.report.text import cut_middle
from lmprog.report.totals import Totals, totals

_LONGEST_TEXT = 4_000  # columns; of what is longer, beginning and end are shown
_MOST_CHOICES = 12  # the best ones are shown
_INDENT = 16  # pixels
_HEAD = ("prompt", "cached", "sampled", "forced")


class _Scale(NamedTuple):
    """What the bars are measured against."""

    tokens: int  # of the largest call
    start: float
    seconds: float


def render_html(record: Record, *, as_page: bool = True) -> str:
    """The tree of a run as HTML: a whole document, or, for notebooks, only its content.

    Everything that programs and models wrote is escaped. Pale text came from the cache; inside one text the border is
    estimated from the token counts.
    """
    entry, total = entry_of(record), totals(record)
    scale = _Scale(max(map(_tokens, _calls(entry)), default=1), entry.started, total.seconds)
    rows = "".join(_rows(entry, 0, scale))
    content = f'<div class="lmprog-run"><style>{STYLE}</style>{_header(entry, total)}{_head_row()}{rows}</div>'
    if not as_page:
        return content
    name = html.escape(entry.label)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{PAGE_STYLE}</style>"
        f"</head><body>{content}</body></html>\n"
    )


def _calls(entry: Entry) -> Iterator[Entry]:
    if entry.has_calls and not entry.is_state:
        yield entry
    for child in entry.children:
        yield from _calls(child)


def _tokens(entry: Entry) -> int:
    return entry.usage.prompt_tokens + entry.usage.completion_tokens


def _header(entry: Entry, total: Totals) -> str:
    legend = "".join(
        f'<span><i style="background:var(--{origin})"></i>{html.escape(words)}</span>'
        for origin, words in ORIGINS.items()
    )
    return (
        f"<header><h2>{html.escape(entry.label)}</h2><p>{html.escape(in_words(total))}</p>"
        f'<div class="legend">{legend}</div></header>'
    )


def _head_row() -> str:
    numbers = "".join(f'<div class="n">{name}</div>' for name in _HEAD)
    return (
        f'<div class="row head"><div>step</div><div>text</div>{numbers}<div>tokens</div><div>when</div>'
        '<div class="n">ms</div></div>'
    )


def _rows(entry: Entry, depth: int, scale: _Scale) -> Iterator[str]:
    cells = _cells(entry, depth, scale)
    if not entry.children:
        yield f'<div class="row {"call" if entry.has_calls else ""}"{_title(entry)}>{cells}</div>'
        return
    kind = "state" if entry.is_state else "group"
    yield f'<details open class="{kind}"><summary class="row"{_title(entry)}>{cells}</summary>'
    for child in entry.children:
        yield from _rows(child, depth + 1, scale)
    yield "</details>"


def _cells(entry: Entry, depth: int, scale: _Scale) -> str:
    return "".join(
        (
            f'<div class="label" style="padding-left:{depth * _INDENT}px">{_label(entry)}</div>',
            f'<div><div class="text">{_text(entry)}</div>{_choices(entry.choices)}</div>',
            _numbers(entry),
            f"<div>{_bar(entry, scale)}</div>",
            f"<div>{_when(entry, scale)}</div>",
            f'<div class="n">{"" if entry.seconds is None else f"{entry.seconds * 1000:,.0f}"}</div>',
        )
    )


def _title(entry: Entry) -> str:
    return f' title="{html.escape(entry.location)}"' if entry.location else ""


def _label(entry: Entry) -> str:
    kind, _, name = entry.label.partition(" ")
    if entry.kind in ("gen", "select") and name:
        return f"{kind} <b>{_escaped(name)}</b>"
    return _escaped(entry.label)


def _text(entry: Entry) -> str:
    if entry.error is not None:
        return f'<span class="bad">{_escaped(f"{type(entry.error).__name__}: {entry.error}")}</span>'
    if entry.status == "failed":
        return '<span class="bad">failed</span>'
    if not entry.pieces and entry.status in ("waiting", "running") and not entry.is_state:
        return f'<span class="cached">{entry.status}</span>'
    length = sum(len(text) for _, text in entry.pieces)
    pieces = cut_middle(entry.pieces, _LONGEST_TEXT, f"\n\u2026 of {length:,} characters \u2026\n")
    return "".join(map(_piece, pieces))


def _piece(piece: Piece) -> str:
    return f'<span class="{piece.origin}">{_escaped(piece.text)}</span>'


def _escaped(text: str) -> str:
    """Control characters as their pictures (U+2400 and on): HTML has no way to write them, and they may mislead."""
    return html.escape("".join(map(_visible, text)))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return chr(0x2400 + ord(character)) if ord(character) < 32 else "\ufffd"


def _choices(choices: tuple[Choice, ...]) -> str:
    if not choices:
        return ""
    best = sorted(choices, key=lambda each: (not each.is_chosen, -each.score))[:_MOST_CHOICES]
    rows = (
        f'<span class="{"chosen" if each.is_chosen else ""}">{_escaped(each.text)}</span>'
        f'<span class="n">{each.score:.3f}</span><span></span>'
        for each in best
    )
    more = f"<span>and {len(choices) - len(best):,} more</span>" if len(choices) > len(best) else ""
    return f'<div class="choices">{"".join(rows)}{more}</div>'


def _parts(entry: Entry) -> Mapping[Origin, int]:
    usage = entry.usage
    return {
        "cached": usage.cached_tokens,
        "prompt": usage.prompt_tokens - usage.cached_tokens,
        "generated": usage.completion_tokens - usage.forced_tokens,
        "forced": usage.forced_tokens,
    }


def _numbers(entry: Entry) -> str:
    if not entry.has_calls:
        return "<div></div>" * len(_HEAD)
    parts = _parts(entry)
    counts = (entry.usage.prompt_tokens, parts["cached"], parts["generated"], parts["forced"])
    return "".join(f'<div class="n{"" if count else " zero"}">{count:,}</div>' for count in counts)


def _bar(entry: Entry, scale: _Scale) -> str:
    if not entry.has_calls or entry.is_state:
        return ""
    parts = "".join(
        f'<i style="width:{100 * count / scale.tokens:.2f}%;background:var(--{origin})"></i>'
        for origin, count in _parts(entry).items()
        if count
    )
    words = ", ".join(f"{count:,} {ORIGINS[origin]}" for origin, count in _parts(entry).items())
    return f'<div class="bar" title="{words}">{parts}</div>'


def _when(entry: Entry, scale: _Scale) -> str:
    if entry.seconds is None or not scale.seconds or not entry.started:
        return ""
    left = 100 * (entry.started - scale.start) / scale.seconds
    wide = 100 * entry.seconds / scale.seconds
    return f'<div class="when"><i style="left:{left:.2f}%;width:{wide:.2f}%"></i></div>'
