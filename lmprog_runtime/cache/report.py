"""The cache, made visible: a tree for people, one for programs, and why a prompt was not a hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.node import Namespace, Node, Root, path

if TYPE_CHECKING:
    from lmprog_runtime.cache.manager import CacheManager

_SHOWN_TOKENS = 8
_DEEPEST_INDENT = 40


def pretty(cache: CacheManager) -> str:
    """One line per node: its positions, first tokens, locks, hits, and what is promised only."""
    tree = cache.tree
    lines = [
        f"{cache.num_slots} slots: {cache.slots.free_count} free, {tree.evictable} evictable, "
        f"{tree.protected} protected, {cache.held} held by {len(cache.rows)} rows"
    ]
    for namespace, root in tree.roots.items():
        lines.append(f"namespace {namespace}")
        lines += ["  " * min(depth, _DEEPEST_INDENT) + _line(node) for node, depth in _below(root)]
    return "\n".join(lines)


def _below(root: Root) -> Iterator[tuple[Node, int]]:
    stack = [(child, 1) for child in reversed(root.children.values())]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in reversed(node.children.values()))


def nodes(cache: CacheManager) -> Iterator[Node]:
    """All nodes, parents first."""
    return (node for root in cache.tree.roots.values() for node, _ in _below(root))


def _line(node: Node) -> str:
    ids = keys.decode(node.key[: _SHOWN_TOKENS * keys.TOKEN_BYTES])
    tokens = " ".join(map(str, ids)) + (" ..." if node.length > _SHOWN_TOKENS else "")
    promised = f", {node.length - node.ready} promised by {node.writer}" if node.writer is not None else ""
    marks = (", dead" if node.is_dead else "") + (", will return" if node.returning else "")
    counts = f"locks {node.locks}, hits {node.hits}, used {node.used}"
    return f"[{node.start}, {node.end}) {tokens} | {counts}{promised}{marks}"


def dump(cache: CacheManager) -> dict[str, Any]:
    """Plain JSON types. Nodes are a flat list, parents first, so that any depth can be written."""
    tree = cache.tree
    return {
        "slots": cache.num_slots,
        "page_size": cache.page_size,
        "free": cache.slots.free_count,
        "evictable": tree.evictable,
        "protected": tree.protected,
        "leased": tree.leased,
        "held": cache.held,
        "rows": len(cache.rows),
        "namespaces": [
            {"namespace": list(namespace), "nodes": [_plain(node) for node, _ in _below(root)]}
            for namespace, root in tree.roots.items()
        ],
    }


def _plain(node: Node) -> dict[str, Any]:
    parent = node.parent
    return {
        "id": node.serial,
        "parent": parent.serial if parent is not None and not isinstance(parent, Root) else None,
        "start": node.start,
        "token_ids": keys.decode(node.key),
        "ready": node.ready,
        "locks": node.locks,
        "leases": node.leases,
        "hits": node.hits,
        "used": node.used,
        "dead": node.is_dead,
        "returning": node.returning,
    }


Reason = Literal["all cached", "last token", "being computed", "other namespace", "evicted", "never seen", "cache off"]


class Texts(NamedTuple):
    """The text around the first token that is not cached."""

    before: str  # the last of what is cached
    prompt: str  # what the prompt has next
    cache: tuple[str, ...]  # what the cache has there instead, one text per branch

    def __str__(self) -> str:
        known = f"; the cache knows {', '.join(map(repr, self.cache))} there" if self.cache else ""
        return f"After {self.before!r} the prompt goes on with {self.prompt!r}{known}."


class Explanation(NamedTuple):
    """Why a prompt is cached as far as it is. The last token is always computed, so `matched` never counts it, and
    "last token" means that it alone is not in the cache."""

    reason: Reason
    matched: int  # tokens that need not be computed
    total: int
    path: tuple[tuple[int, int, int], ...]  # start, end and hits of each node that matches
    known_next: tuple[int, ...]  # what the cache has at position `matched` instead: first tokens of the branches there
    namespace: Namespace | None  # one with a longer match, for "other namespace"
    known_paths: tuple[tuple[int, ...], ...] = ()  # `known_next`, with what follows them there
    texts: Texts | None = None  # where a tokenizer was at hand

    def __str__(self) -> str:
        cause = {
            "all cached": "all of it that can be",
            "last token": "all but the last one, which is always computed and is not in the cache here",
            "being computed": "the next ones are being computed right now",
            "other namespace": f"namespace {self.namespace} has more, and is not shared",
            "evicted": "the next ones were cached and evicted",
            "never seen": f"never seen; it only knows {list(self.known_next)} here"
            if self.known_next
            else "never seen",
            "cache off": "the cache is switched off",
        }
        window = "" if self.texts is None else f" {self.texts}"
        return f"{self.matched} of {self.total} tokens are cached: {cause[self.reason]}.{window}"


def explain(cache: CacheManager, namespace: Namespace, token_ids: Sequence[int]) -> Explanation:
    key, total = keys.encode(token_ids), len(token_ids)
    match = cache.match(namespace, key, total - 1)
    nodes = () if match is None else tuple(path(match.node))
    matched = 0 if match is None else match.length
    hits = tuple((node.start, min(node.end, matched), node.hits) for node in nodes)
    branch = cache.tree.roots.get(namespace) if match is None else match.node
    ends_inside = match is not None and match.offset < match.node.length
    following = _following(branch, ends_inside, matched)
    known_next = tuple(path[0] for path in following)
    better = _better_namespace(cache, namespace, key, matched)
    reason: Reason = "never seen"
    if not cache.config.enabled:
        reason = "cache off"
    elif matched >= cache.tree.floor(total - 1):
        whole = cache.tree.match(namespace, key)
        knows_last = whole is not None and whole.length >= cache.tree.floor(total)
        reason = "all cached" if knows_last else "last token"
    elif match is not None and match.promised:
        reason = "being computed"
    elif not ends_inside and _was_evicted(cache, namespace, branch, key, matched):
        reason = "evicted"
    elif better is not None:
        reason = "other namespace"
    elsewhere = better if reason == "other namespace" else None
    return Explanation(reason, matched, total, hits, known_next, elsewhere, following)


def _following(branch: Node | None, ends_inside: bool, matched: int) -> tuple[tuple[int, ...], ...]:
    """First tokens of the branches behind a match."""
    if branch is None:
        return ()
    if ends_inside:
        at = matched - branch.start
        return (tuple(keys.decode(keys.piece(branch.key, at, at + _SHOWN_TOKENS))),)
    shown = list(branch.children.values())[:_SHOWN_TOKENS]
    return tuple(tuple(keys.decode(keys.piece(child.key, 0, _SHOWN_TOKENS))) for child in shown)


def with_texts(found: Explanation, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Explanation:
    """The same, with the text around the first token that is not cached."""
    at = found.matched
    before, after = token_ids[max(0, at - _SHOWN_TOKENS) : at], token_ids[at : at + _SHOWN_TOKENS]
    known = tuple(decode(path) for path in found.known_paths)
    return found._replace(texts=Texts(decode(before), decode(after), known))


def _was_evicted(cache: CacheManager, namespace: Namespace, branch: Node | None, key: bytes, matched: int) -> bool:
    ghosts = cache.tree.ghosts(namespace) if branch is None else branch.ghosts
    return ghosts is not None and keys.piece(key, matched, matched + cache.page_size) in ghosts


def _better_namespace(cache: CacheManager, namespace: Namespace, key: bytes, matched: int) -> Namespace | None:
    best, longest = None, matched
    for other in cache.tree.roots:
        match = cache.tree.match(other, key)
        if other != namespace and match is not None and match.length > longest:
            best, longest = other, match.length
    return best
