// The walks over a token trie, which all masks are made of.
#pragma once

#include "masks.h"

namespace lmprog {

constexpr int32_t SMALL_SUBTREE = 4;  // nodes; to ask whether a state loops costs as much as to walk so many

template <class Visit>
void Masks::walk(const PreorderTrie& trie, int32_t from, int32_t to, Id state, Visit visit) {
  if (from >= to) return;
  const PreorderTrie::Node* const nodes = trie.nodes.data();
  // By depth in the trie. The walk is bound by the latency of stack -> row -> state, 24 cycles a node.
  Id* const stack = stack_.data() - (nodes[from].depth - 1);
  stack[nodes[from].depth - 1] = state;
  for (int32_t i = from; i < to;) {
    const PreorderTrie::Node node = nodes[i];
    const Id after = nodes_.next_state(stack[node.depth - 1], node.byte);
    if (after == EMPTY) {
      i = node.skip;
      continue;
    }
    if ((i & 1023) == 0) nodes_.check_time();
    stack[node.depth] = after;
    visit(i, after);
    i++;
  }
}

template <bool with_exits, class AddTokens, class AddExit>
void Masks::walk_vocabulary(Id state, AddTokens add_tokens, AddExit add_exit) {
  const PreorderTrie& trie = vocabulary_.trie;
  const int32_t count = static_cast<int32_t>(trie.size());
  int32_t run = 0;  // nodes [run, i) are allowed
  stack_[0] = state;
  for (int32_t i = 0; i < count;) {
    const PreorderTrie::Node node = trie.nodes[i];
    const Id after = nodes_.next_state(stack_[node.depth - 1], node.byte);
    if (after == EMPTY) {
      add_tokens(trie.token_begin(run), trie.token_begin(i));
      i = run = node.skip;
      continue;
    }
    if ((i & 1023) == 0) nodes_.check_time();
    stack_[node.depth] = after;
    const bool is_exit = with_exits && node.skip > i + 1 && nodes_.nullable(after);
    if (is_exit) add_exit(i);
    const bool is_alike = !is_exit && node.skip - i > SMALL_SUBTREE && (vocabulary_.below[i] & ~loops(after)) == 0;
    i = is_alike ? node.skip : i + 1;
  }
  add_tokens(trie.token_begin(run), trie.token_begin(count));
}

template <class Visit>
void Masks::walk_both(Id x, Id y, Visit visit) {
  const PreorderTrie& trie = vocabulary_.trie;
  if (equal_height(x, y) >= vocabulary_.max_length) return;
  stack_[0] = x;
  other_stack_[0] = y;
  for (int32_t i = 0; i < static_cast<int32_t>(trie.size());) {
    const int depth = trie.nodes[i].depth;
    Id p = stack_[depth - 1], q = other_stack_[depth - 1];
    p = p == EMPTY ? EMPTY : nodes_.next_state(p, trie.nodes[i].byte);
    q = q == EMPTY ? EMPTY : nodes_.next_state(q, trie.nodes[i].byte);
    if (p == q || (p != EMPTY && q != EMPTY && equal_height(p, q) >= vocabulary_.height[i])) {
      i = trie.nodes[i].skip;
      continue;
    }
    if ((i & 1023) == 0) nodes_.check_time();
    stack_[depth] = p;
    other_stack_[depth] = q;
    visit(i, p, q);
    i++;
  }
}

}  // namespace lmprog
