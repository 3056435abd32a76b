#include "shortest.h"

#include <algorithm>

namespace lmprog {

namespace {

constexpr size_t MOST_SEARCHED = 5000;  // states of one search

}  // namespace

int32_t Shortest::length(Id x) {
  if (!is_prepared_) solve_references();
  return solve(x);
}

void Shortest::write(Id x, uint8_t* out) {
  while (!nodes_.nullable(x)) {
    length(x);
    *out = first_byte(x);
    x = nodes_.next_state(x, *out++);
  }
}

int32_t& Shortest::known(Id x) {
  if (static_cast<size_t>(x) >= lengths_.size()) lengths_.resize(std::max(nodes_.size(), lengths_.size() * 2), -1);
  return lengths_[x];
}

// Parts first, with a stack of its own: texts are nested as deep as they are long.
int32_t Shortest::solve(Id x) {
  std::vector<Id> stack{x};
  while (!stack.empty()) {
    const Id top = stack.back();
    if (known(top) >= 0) {
      stack.pop_back();
      continue;
    }
    const size_t before = stack.size();
    for (Id part : parts(top)) {
      if (known(part) < 0) stack.push_back(part);
    }
    if (stack.size() != before) continue;
    nodes_.check_time();
    const int32_t found = combine(top);
    known(top) = found;
    stack.pop_back();
  }
  return known(x);
}

// The least fixpoint, from above. Source: Knuth, "A Generalization of Dijkstra's Algorithm" (1977); rounds, not a heap.
void Shortest::solve_references() {
  const std::vector<Id>& definitions = nodes_.definitions();
  references_.assign(definitions.size(), FAR);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    lengths_.clear();
    for (size_t i = 0; i < definitions.size(); i++) {
      if (definitions[i] < 0) continue;
      const int32_t found = solve(definitions[i]);
      has_changed |= found < references_[i];
      references_[i] = found;
    }
  }
  is_prepared_ = true;
}

// What the length is made of; nothing where it is known at once or searched.
std::vector<Id> Shortest::parts(Id x) const {
  const Node& n = nodes_.node(x);
  if (n.nullable) return {};
  switch (n.kind) {
    case Kind::cat:
      return {n.a, n.b};
    case Kind::rep:
    case Kind::lexeme:
      return {n.a};
    case Kind::alt:
      return nodes_.list_of(x);
    case Kind::members: {
      const MemberList& list = nodes_.member_list(x);
      std::vector<Id> found = list.pairs;
      found.insert(found.end(), {list.extra, list.separator});
      return found;
    }
    default:
      return {};
  }
}

int32_t Shortest::combine(Id x) {
  const Node n = nodes_.node(x);
  if (n.nullable) return 0;
  switch (n.kind) {
    case Kind::empty:
      return FAR;
    case Kind::set:
      return 1;
    case Kind::cat:
      return sum(known(n.a), known(n.b));
    case Kind::rep:
      return sum(static_cast<int64_t>(n.b) * known(n.a), 0);
    case Kind::lexeme:
      return known(n.a);
    case Kind::reference:
      return references_[n.a];
    case Kind::members:
      return members_length(x);
    case Kind::alt: {
      int32_t least = FAR;
      for (Id member : nodes_.list_of(x)) least = std::min(least, known(member));
      return least;
    }
    default:
      return search(x).length;
  }
}

// The required members, and the cheapest of the others for as long as there are too few.
int32_t Shortest::members_length(Id x) {
  const Node n = nodes_.node(x);
  const MemberList& list = nodes_.member_list(x);
  std::vector<int32_t> others;
  int64_t total = 0;
  int32_t count = 0;
  for (size_t i = 0; i < list.pairs.size(); i++) {
    if (nodes_.is_seen(list, n.b, i)) continue;
    if (list.required[i]) {
      total += known(list.pairs[i]);
      count++;
    } else {
      others.push_back(known(list.pairs[i]));
    }
  }
  std::sort(others.begin(), others.end());
  const int32_t extra = known(list.extra);
  for (size_t i = 0; count < list.low - n.c; count++, i++) {
    total += i < others.size() ? std::min(others[i], extra) : extra;
    if (total >= FAR) return FAR;
  }
  return sum(total, static_cast<int64_t>(count - (n.c == 0)) * known(list.separator));
}

// The first byte of the text. Goes to what comes first only, so the nesting limit bounds the recursion.
uint8_t Shortest::first_byte(Id x) {
  for (; nodes_.kind(x) == Kind::cat; x = nodes_.node(x).b) {
    if (!nodes_.nullable(nodes_.node(x).a)) return first_byte(nodes_.node(x).a);
  }
  switch (nodes_.kind(x)) {
    case Kind::set: {
      const ByteSet& set = nodes_.set_of(x);
      int word = 0;
      while (!set.words[word]) word++;
      return static_cast<uint8_t>(word * 64 + __builtin_ctzll(set.words[word]));
    }
    case Kind::rep:
    case Kind::lexeme:
      return first_byte(nodes_.node(x).a);
    case Kind::alt:
      return first_byte_of_any(x);
    case Kind::reference:
      return first_byte(nodes_.definition(x));
    case Kind::members: {
      const Id choice = nodes_.expand(x);
      length(choice);
      return first_byte(choice);
    }
    default:
      return search(x).byte;
  }
}

uint8_t Shortest::first_byte_of_any(Id x) {
  const int32_t least = length(x);
  int found = 256;
  for (Id member : nodes_.list_of(x)) {
    if (length(member) == least) found = std::min<int>(found, first_byte(member));
  }
  return static_cast<uint8_t>(found);
}

// By breadth, bytes in order: the first path to a state is the first text that leads there. What lies on the path found is
// kept too, since the generation goes along it.
Shortest::Found Shortest::search(Id x) {
  auto before = searched_.find(x);
  if (before != searched_.end()) return before->second;
  struct Step {
    Id state;
    int32_t from;  // index of the step before
    uint8_t byte;
  };
  std::vector<Step> steps{{x, -1, 0}};
  std::unordered_map<Id, bool> seen{{x, true}};
  for (size_t i = 0; i < steps.size() && steps.size() < MOST_SEARCHED; i++) {
    ByteSet allowed = nodes_.first(steps[i].state);
    allowed &= nodes_.producible();
    std::array<bool, 256> tried{};  // byte classes
    for (int byte = 0; byte < 256; byte++) {
      if (!allowed.has(byte) || tried[nodes_.byte_class(byte)]) continue;
      tried[nodes_.byte_class(byte)] = true;
      const Id after = nodes_.next_state(steps[i].state, byte);
      if (after == EMPTY || !seen.emplace(after, true).second) continue;
      steps.push_back({after, static_cast<int32_t>(i), static_cast<uint8_t>(byte)});
      if (!nodes_.nullable(after)) continue;
      Step last = steps.back();
      for (int32_t length = 1; last.from >= 0; length++) {
        const Step previous = steps[last.from];
        searched_[previous.state] = {length, last.byte};
        last = previous;
      }
      return searched_[x];
    }
  }
  return searched_[x] = {FAR, 0};
}

}  // namespace lmprog
