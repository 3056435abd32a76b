"""Expressions for text: sets of code points in an encoding, and lists of words with shared beginnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmprog_runtime.constraint.fallback.nodes import EMPTY, EPSILON, Nodes

UTF8, JSON_ESCAPED, JSON_PLAIN = 0, 1, 2

Range = tuple[int, int]
DigitSet = Callable[[int, int], int]
"""An expression for one digit between two values."""

_SURROGATES = (0xD800, 0xDFFF)
_UTF8_LENGTHS = ((0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x2F: "/", 0x5C: "\\"}
_NEEDS_ESCAPE = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_HEX = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "aA", "bB", "cC", "dD", "eE", "fF")


def code_points(nodes: Nodes, ranges: Sequence[Range], encoding: int) -> int:
    """One character out of sorted, disjoint, inclusive ranges. Surrogates are no characters and are left out."""
    characters = subtract(ranges, (_SURROGATES,))
    if encoding == UTF8:
        return _utf8(nodes, characters)
    raw = _utf8(nodes, subtract(characters, _NEEDS_ESCAPE))
    contained = [escape for point, escape in _SHORT_ESCAPES.items() if any(a <= point <= b for a, b in characters)]
    if encoding == JSON_PLAIN:
        contained = [escape for escape in contained if escape != "/"]
        spelled = intersect(subtract(characters, [(c, c) for c in _SHORT_ESCAPES]), ((0, 0x1F),))
    else:
        spelled = list(characters)
    short = nodes.concat2(nodes.literal(b"\\"), _bytes(nodes, "".join(contained).encode()))
    return nodes.alternate([raw, short, _json_hex(nodes, spelled)])


def subtract(ranges: Sequence[Range], holes: Sequence[Range]) -> list[Range]:
    for low, high in holes:
        ranges = [
            piece for a, b in ranges for piece in ((a, min(b, low - 1)), (max(a, high + 1), b)) if piece[0] <= piece[1]
        ]
    return sorted(set(ranges))


def intersect(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    pairs = ((max(a, low), min(b, high)) for a, b in ranges for low, high in others)
    return sorted((a, b) for a, b in pairs if a <= b)


def _bytes(nodes: Nodes, data: bytes) -> int:
    mask = 0
    for byte in data:
        mask |= 1 << byte
    return nodes.byte_set(mask)


def _utf8(nodes: Nodes, ranges: Sequence[Range]) -> int:
    ascii_bytes = b"".join(bytes(range(a, min(b, 0x7F) + 1)) for a, b in ranges if a < 0x80)
    choices = [_bytes(nodes, ascii_bytes)]
    for low, high in _UTF8_LENGTHS:
        for a, b in intersect(ranges, ((low, high),)):
            choices.append(_digits(nodes, chr(a).encode(), chr(b).encode(), (0x80, 0xBF), _byte_range(nodes)))
    return nodes.alternate(choices)


def _byte_range(nodes: Nodes) -> DigitSet:
    return lambda low, high: nodes.byte_set(((2 << (high - low)) - 1) << low)


def _digits(nodes: Nodes, low: Sequence[int], high: Sequence[int], span: Range, digit: DigitSet) -> int:
    """Numbers of equal length between two, digit by digit; digits after the first lie in `span`."""
    if len(low) == 1:
        return digit(low[0], high[0])
    least, most = [span[0]] * (len(low) - 1), [span[1]] * (len(low) - 1)
    if low[0] == high[0]:
        return nodes.concat2(digit(low[0], low[0]), _digits(nodes, low[1:], high[1:], span, digit))
    choices = []
    first, last = low[0], high[0]
    if list(low[1:]) != least:
        choices.append(nodes.concat2(digit(first, first), _digits(nodes, low[1:], most, span, digit)))
        first += 1
    if list(high[1:]) != most:
        choices.append(nodes.concat2(digit(last, last), _digits(nodes, least, high[1:], span, digit)))
        last -= 1
    if first <= last:
        choices.append(nodes.concat2(digit(first, last), _digits(nodes, least, most, span, digit)))
    return nodes.alternate(choices)


def _json_hex(nodes: Nodes, ranges: Sequence[Range]) -> int:
    """\\uXXXX, and two of them for code points beyond the first 65,536."""
    choices = [_unit_range(nodes, a, b) for a, b in intersect(ranges, ((0, 0xFFFF),))]
    for a, b in intersect(ranges, ((0x10000, 0x10FFFF),)):
        low, high = divmod(a - 0x10000, 1024), divmod(b - 0x10000, 1024)
        choices.append(_surrogate_pairs(nodes, low, high))
    return nodes.alternate(choices)


def _surrogate_pairs(nodes: Nodes, low: Range, high: Range) -> int:
    def half(base: int) -> DigitSet:
        return lambda a, b: _unit_range(nodes, base + a, base + b)

    first, second = half(0xD800), half(0xDC00)
    if low[0] == high[0]:
        return nodes.concat2(first(low[0], low[0]), second(low[1], high[1]))
    choices = [
        nodes.concat2(first(low[0], low[0]), second(low[1], 1023)),
        nodes.concat2(first(high[0], high[0]), second(0, high[1])),
    ]
    if low[0] + 1 < high[0]:
        choices.append(nodes.concat2(first(low[0] + 1, high[0] - 1), second(0, 1023)))
    return nodes.alternate(choices)


def _unit_range(nodes: Nodes, low: int, high: int) -> int:
    def hex_range(a: int, b: int) -> int:
        return _bytes(nodes, "".join(_HEX[a : b + 1]).encode())

    digits = _digits(nodes, _nibbles(low), _nibbles(high), (0, 15), hex_range)
    return nodes.concat2(nodes.literal(b"\\u"), digits)


def _nibbles(value: int) -> tuple[int, ...]:
    return tuple(value >> shift & 15 for shift in (12, 8, 4, 0))


def words(nodes: Nodes, choices: Sequence[bytes]) -> int:
    """One of the byte strings. Common beginnings are shared, so a state is a place in their trie."""
    ordered = sorted(set(choices))
    if not ordered:
        return EMPTY
    # Bottom-up over the sorted list: `open_levels[d]` holds the finished branches of the current prefix of length d.
    open_levels: list[list[int]] = [[]]
    previous = b""
    for word in [*ordered, None]:
        common = _common_length(previous, word) if word is not None else 0
        while len(open_levels) - 1 > common:
            branch = nodes.alternate(open_levels.pop())
            byte = previous[len(open_levels) - 1]
            open_levels[-1].append(nodes.concat2(nodes.byte_set(1 << byte), branch))
        if word is not None:
            open_levels += [[] for _ in range(len(word) - common)]
            open_levels[-1].append(EPSILON)
            previous = word
    return nodes.alternate(open_levels[0])


def _common_length(a: bytes, b: bytes) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
