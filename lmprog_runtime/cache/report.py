"""The cache, made visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.node import Node

if TYPE_CHECKING:
    from lmprog_runtime.cache.manager import CacheManager

_SHOWN_TOKENS = 8


def pretty(cache: CacheManager) -> str:
    """One line per node: its positions, first tokens, locks, hits, and what is promised only."""
    tree = cache.tree
    lines = [
        f"{cache.num_slots} slots: {cache.slots.free_count} free, {tree.evictable} evictable, "
        f"{tree.protected} protected, {cache.held} held by {len(cache.rows)} rows"
    ]
    for namespace, root in tree.roots.items():
        lines.append(f"namespace {namespace}")
        stack = [(child, 1) for child in reversed(root.children.values())]
        while stack:
            node, depth = stack.pop()
            lines.append("  " * depth + _line(node))
            stack.extend((child, depth + 1) for child in reversed(node.children.values()))
    return "\n".join(lines)


def _line(node: Node) -> str:
    ids = keys.decode(node.key[: _SHOWN_TOKENS * keys.TOKEN_BYTES])
    tokens = " ".join(map(str, ids)) + (" ..." if node.length > _SHOWN_TOKENS else "")
    promised = f", {node.length - node.ready} promised by {node.writer}" if node.writer is not None else ""
    return f"[{node.start}, {node.end}) {tokens} | locks {node.locks}, hits {node.hits}, used {node.used}{promised}"
