// Pruning what cannot be: see fallback/sealing.py.
#include <algorithm>

#include "derivatives.h"

namespace lmprog {

Id Derivatives::seal(Id root, const ByteSet& producible) {
  split_classes(producible);
  producible_ = producible;
  std::vector<Id> order = reachable(root);
  check_left_recursion(order);
  NodeSet dead_nodes = unproductive(order, {});
  for (;;) {
    root = rewrite(root, order, dead_nodes);
    is_sealed_ = true;
    order = reachable(root);
    dead_nodes.clear();
    for (Id x : order) {
      if (needs_check(x) && !is_alive(x)) dead_nodes.insert(x);
    }
    if (dead_nodes.empty()) return root;
    for (Id x : unproductive(order, dead_nodes)) dead_nodes.insert(x);
  }
}

std::vector<Id> Derivatives::children(Id x) const {
  const Node& n = node(x);
  switch (n.kind) {
    case Kind::cat:
      return {n.a, n.b};
    case Kind::alt:
    case Kind::all:
      return list_of(x);
    case Kind::rep:
    case Kind::complement:
    case Kind::lexeme:
      return {n.a};
    case Kind::members: {
      const MemberList& list = member_list(x);
      std::vector<Id> parts = list.pairs;
      parts.push_back(list.extra);
      parts.push_back(list.separator);
      return parts;
    }
    default:
      return {};
  }
}

// Every node under the root, through references too; children come before their parents.
std::vector<Id> Derivatives::reachable(Id root) const {
  std::vector<Id> order, roots{root};
  std::vector<uint8_t> seen(size(), 0);
  std::vector<std::pair<Id, bool>> stack;
  while (!roots.empty()) {
    stack.emplace_back(roots.back(), false);
    roots.pop_back();
    while (!stack.empty()) {
      auto [x, is_done] = stack.back();
      stack.pop_back();
      if (is_done) {
        order.push_back(x);
        continue;
      }
      if (seen[x]) continue;
      seen[x] = 1;
      stack.emplace_back(x, true);
      for (Id child : children(x)) stack.emplace_back(child, false);
      if (kind(x) == Kind::reference) roots.push_back(definition(x));
    }
  }
  return order;
}

namespace {

using References = std::vector<Id>;  // sorted

void merge(References& into, const References& from) {
  References merged;
  std::set_union(into.begin(), into.end(), from.begin(), from.end(), std::back_inserter(merged));
  into.swap(merged);
}

}  // namespace

// Refuse references that come back to themselves before a byte is read: their derivative would not end.
void Derivatives::check_left_recursion(const std::vector<Id>& order) const {
  std::unordered_map<Id, References> left;  // references that a node reaches without reading a byte
  for (Id x : order) {
    References found;
    if (kind(x) == Kind::reference) {
      found = {x};
    } else if (kind(x) == Kind::cat) {
      found = left[node(x).a];
      if (nullable(node(x).a)) merge(found, left[node(x).b]);
    } else {
      for (Id child : children(x)) merge(found, left[child]);
    }
    left[x] = std::move(found);
  }
  std::unordered_map<Id, int> depth;
  for (Id start : order) {
    if (kind(start) != Kind::reference) continue;
    std::vector<Id> stack{start};
    while (!stack.empty()) {
      Id x = stack.back();
      Id missing = -1;
      int below = 0;
      for (Id target : left[definition(x)]) {
        auto known = depth.find(target);
        if (known == depth.end()) {
          missing = target;
          break;
        }
        below = std::max(below, known->second);
      }
      if (missing >= 0 && !depth.count(x)) {
        if (std::find(stack.begin(), stack.end(), missing) != stack.end()) throw Fault{LEFT_RECURSION};
        stack.push_back(missing);
        continue;
      }
      depth[x] = below + 1 + node(definition(x)).left_depth;
      if (depth[x] > MAX_NESTING) throw Fault{NESTING};
      stack.pop_back();
    }
  }
}

// References that have no finite text: the least fixpoint, with intersections taken to have some.
Derivatives::NodeSet Derivatives::unproductive(const std::vector<Id>& order, const NodeSet& dead_nodes) const {
  NodeSet alive_references;
  for (;;) {
    std::unordered_map<Id, bool> productive;
    for (Id x : order) productive[x] = !dead_nodes.count(x) && is_productive_given(x, productive, alive_references);
    NodeSet found, rest;
    for (Id x : order) {
      if (kind(x) == Kind::reference) (productive[definition(x)] ? found : rest).insert(x);
    }
    if (found == alive_references) return rest;
    alive_references.swap(found);
  }
}

bool Derivatives::is_productive_given(Id x, const std::unordered_map<Id, bool>& productive, const NodeSet& alive) const {
  const Node& n = node(x);
  switch (n.kind) {
    case Kind::empty:
      return false;
    case Kind::set: {
      ByteSet left = set_of(x);
      left &= producible_;
      return left.any();
    }
    case Kind::reference:
      return alive.count(x);
    case Kind::cat:
      return productive.at(n.a) && productive.at(n.b);
    case Kind::rep:
    case Kind::lexeme:
      return n.nullable || productive.at(n.a);
    case Kind::alt: {
      const Id* begin = lists_.data() + n.a;
      return std::any_of(begin, begin + n.b, [&](Id member) { return productive.at(member); });
    }
    case Kind::members: {
      const MemberList& list = member_list(x);
      int32_t usable = 0;
      for (size_t i = 0; i < list.pairs.size(); i++) {
        if (productive.at(list.pairs[i])) {
          usable++;
        } else if (list.required[i]) {
          return false;
        }
      }
      return usable >= list.low || productive.at(list.extra);
    }
    default:
      return true;
  }
}

Id Derivatives::rewrite(Id root, const std::vector<Id>& order, const NodeSet& dead_nodes) {
  NodeMap renamed;
  for (Id x : order) renamed[x] = dead_nodes.count(x) ? EMPTY : rebuilt(x, renamed);
  for (Id x : order) {
    if (kind(x) == Kind::reference) define(x, renamed.at(definition(x)));
  }
  first_index_.clear();
  firsts_.clear();
  expanded_.clear();
  life_.clear();
  forget_transitions();
  return renamed.at(root);
}

Id Derivatives::rebuilt(Id x, const NodeMap& renamed) {
  const Node n = node(x);
  switch (n.kind) {
    case Kind::set: {
      ByteSet left = set_of(x);
      left &= producible_;
      return left == set_of(x) ? x : byte_set(left);
    }
    case Kind::cat:
      return concat(renamed.at(n.a), renamed.at(n.b));
    case Kind::rep:
      return repeat(renamed.at(n.a), n.b, n.c);
    case Kind::complement:
      return complement(renamed.at(n.a));
    case Kind::lexeme:
      return lexeme(renamed.at(n.a));
    case Kind::members:
      return rebuilt_members(x, renamed);
    case Kind::alt:
    case Kind::all: {
      std::vector<Id> members = list_of(x);
      for (Id& member : members) member = renamed.at(member);
      return n.kind == Kind::alt ? alternate(std::move(members)) : intersect(std::move(members));
    }
    default:
      return x;
  }
}

// A member list over other parts, without the members that cannot be.
Id Derivatives::rebuilt_members(Id x, const NodeMap& renamed) {
  const MemberList& list = member_list(x);
  MemberList kept{{}, {}, renamed.at(list.extra), renamed.at(list.separator), list.low, list.high, list.any_order};
  bool is_same = kept.extra == list.extra && kept.separator == list.separator;
  for (size_t i = 0; i < list.pairs.size(); i++) {
    Id pair = renamed.at(list.pairs[i]);
    is_same = is_same && pair == list.pairs[i];
    if (pair == EMPTY && list.required[i]) return EMPTY;
    if (pair == EMPTY) continue;
    kept.pairs.push_back(pair);
    kept.required.push_back(list.required[i]);
  }
  return is_same ? x : members(std::move(kept));
}

}  // namespace lmprog
