"""The radix tree and its explanations as routes show them. Token ids are prompts: without leave they stay inside."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from lmprog_runtime.cache.report import Explanation
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.server.common import token_text

MOST_NODES = 2000
SHOWN_CHARACTERS = 120


def tree_view(dump: Mapping[str, Any], tokenizer: Tokenizer, show_text: bool) -> dict[str, Any]:
    """A dump of the tree with lengths in place of tokens, its most recently used nodes when there are too many.

    Salts are shown as digests. `show_text` adds the text of each node.
    """
    namespaces = []
    for entry in dump["namespaces"]:
        nodes = [_node(node, tokenizer, show_text) for node in _latest(entry["nodes"])]
        namespaces.append({"namespace": _name(entry["namespace"]), "nodes": nodes, "total_nodes": len(entry["nodes"])})
    return {**dump, "namespaces": namespaces}


def _latest(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most MOST_NODES, with all their ancestors' lines kept: an ancestor was used whenever its child was."""
    if len(nodes) <= MOST_NODES:
        return list(nodes)
    kept = {node["id"] for node in sorted(nodes, key=lambda node: (-node["used"], node["start"]))[:MOST_NODES]}
    shown: set[int] = set()
    found = []
    for node in nodes:  # parents come first
        if node["id"] in kept and (node["parent"] is None or node["parent"] in shown):
            shown.add(node["id"])
            found.append(node)
    return found


def _node(node: Mapping[str, Any], tokenizer: Tokenizer, show_text: bool) -> dict[str, Any]:
    ids = node["token_ids"]
    shown = {name: value for name, value in node.items() if name != "token_ids"}
    shown["length"] = len(ids)
    if show_text:
        shown["text"] = _text(tokenizer, ids)
    return shown


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    shown = "".join(token_text(tokenizer, token_id) for token_id in ids[:SHOWN_CHARACTERS])
    return shown[:SHOWN_CHARACTERS]


def _name(namespace: Sequence[Any]) -> list[Any]:
    revision, adapter, salt = namespace
    hidden = None if salt is None else hashlib.sha256(str(salt).encode("utf-8", "replace")).hexdigest()[:8]
    return [revision, adapter, hidden]


def explanation_view(found: Explanation, ids: Sequence[int], tokenizer: Tokenizer, show_text: bool) -> dict[str, Any]:
    """Why a prompt is cached as far as it is, with the asker's own tokens; others' tokens only with `show_text`."""
    view: dict[str, Any] = {
        "reason": found.reason,
        "matched": found.matched,
        "total": found.total,
        "path": [list(step) for step in found.path],
        "tokens": [token_text(tokenizer, token_id) for token_id in ids[:5000]],
    }
    if show_text:
        view["known_next"] = [token_text(tokenizer, token_id) for token_id in found.known_next]
    return view
