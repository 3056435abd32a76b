#include "derivatives.h"

#include <algorithm>

namespace lmprog {

namespace {
constexpr size_t FIRST_SLAB = 1 << 11, LAST_SLAB = 1 << 16;  // transitions allocated at a time
}

size_t Derivatives::bytes() const {
  return Nodes::bytes() + slab_bytes_ + firsts_.size() * sizeof(ByteSet) + rows_.capacity() * sizeof(Id*) +
         (expanded_.size() + life_.size() + raw_.size()) * 40;
}

void Derivatives::forget_transitions() {
  rows_.assign(rows_.size(), nullptr);
  slabs_.clear();
  raw_.clear();
  slab_used_ = slab_bytes_ = 0;
  representatives_.assign(class_count_, 0);
  for (int byte = 255; byte >= 0; byte--) representatives_[classes_[byte]] = static_cast<uint8_t>(byte);
}

// ---- first bytes ---------------------------------------------------------------------------------------------------

const ByteSet& Derivatives::first(Id x) {
  if (static_cast<size_t>(x) >= first_index_.size()) first_index_.resize(std::max(size(), first_index_.size() * 2), -1);
  if (first_index_[x] < 0) {
    ByteSet found = compute_first(x);
    first_index_[x] = static_cast<int32_t>(firsts_.size());
    firsts_.push_back(found);
  }
  return firsts_[first_index_[x]];
}

ByteSet Derivatives::compute_first(Id x) {
  const Node n = node(x);
  ByteSet found;
  switch (n.kind) {
    case Kind::set:
      return set_of(x);
    case Kind::cat:
      found = first(n.a);
      if (nullable(n.a)) found |= first(n.b);
      return found;
    case Kind::alt:
      for (Id member : list_of(x)) found |= first(member);
      return found;
    case Kind::all:
      found = ByteSet::full();
      for (Id member : list_of(x)) found &= first(member);
      return found;
    case Kind::rep:
    case Kind::lexeme:
      return first(n.a);
    case Kind::reference:
      return first(definition(x));
    case Kind::members:
      return first(expand(x));
    case Kind::complement:
      return ByteSet::full();
    default:
      return found;
  }
}

Id Derivatives::definition(Id reference) const {
  Id found = definitions_[node(reference).a];
  if (found < 0) throw Fault{UNDEFINED};
  return found;
}

// ---- transitions ---------------------------------------------------------------------------------------------------

Id Derivatives::compute_next(Id x, uint8_t byte) {
  const Node n = node(x);
  // Literal text needs no memory for its transitions, and most states are inside literal text.
  if (n.kind == Kind::cat && kind(n.a) == Kind::set) return set_of(n.a).has(byte) ? n.b : EMPTY;
  if (n.kind <= Kind::set) return n.kind == Kind::set && set_of(x).has(byte) ? EPSILON : EMPTY;
  Id after = EMPTY;
  if (first(x).has(byte)) {
    after = derive(x, byte, false);
    if (is_sealed_ && needs_check(after) && !is_alive(after)) after = EMPTY;
  }
  remember(x, byte, after);
  return after;
}

void Derivatives::remember(Id x, uint8_t byte, Id after) {
  if (static_cast<size_t>(x) >= rows_.size()) rows_.resize(std::max(size(), rows_.size() * 2), nullptr);
  if (!rows_[x]) {
    if (slabs_.empty() || slab_used_ + class_count_ > slab_size_) {
      slab_size_ = slabs_.empty() ? FIRST_SLAB : std::min(slab_size_ * 2, LAST_SLAB);
      slabs_.emplace_back(new Id[slab_size_]);
      slab_bytes_ += slab_size_ * sizeof(Id);
      slab_used_ = 0;
    }
    rows_[x] = slabs_.back().get() + slab_used_;
    slab_used_ += class_count_;
    std::fill(rows_[x], rows_[x] + class_count_, -1);
  }
  rows_[x][classes_[byte]] = after;
}

Id Derivatives::raw_next(Id x, uint8_t byte) {
  const uint64_t key = static_cast<uint64_t>(x) << 8 | classes_[byte];
  auto found = raw_.find(key);
  if (found != raw_.end()) return found->second;
  const Id after = first(x).has(byte) ? derive(x, byte, true) : EMPTY;
  raw_[key] = after;
  return after;
}

Id Derivatives::derive(Id x, uint8_t byte, bool raw) {
  check_time();
  const Node n = node(x);
  switch (n.kind) {
    case Kind::set:
      return set_of(x).has(byte) ? EPSILON : EMPTY;
    case Kind::cat:
      return derive_cat(x, byte, raw);
    case Kind::alt:
      return derive_alt(x, byte, raw);
    case Kind::all:
      return derive_all(x, byte, raw);
    case Kind::rep: {
      Id head = follow(n.a, byte, raw);
      return head == EMPTY ? EMPTY : concat(head, repeat(n.a, std::max(n.b - 1, 0), std::max(n.c - 1, -1)));
    }
    case Kind::complement:
      return complement(follow(n.a, byte, raw));
    case Kind::lexeme:
      return lexeme(follow(n.a, byte, raw));
    case Kind::reference:
      return follow(definition(x), byte, raw);
    case Kind::members:
      return follow(expand(x), byte, raw);
    default:
      return EMPTY;
  }
}

// Along the spine for as long as it may be skipped: a loop, since a spine can be long.
Id Derivatives::derive_cat(Id x, uint8_t byte, bool raw) {
  std::vector<Id> parts;
  while (kind(x) == Kind::cat) {
    const Node n = node(x);
    if (first(n.a).has(byte)) parts.push_back(concat(follow(n.a, byte, raw), n.b));
    if (!nullable(n.a)) return parts.size() == 1 ? parts[0] : alternate(std::move(parts));
    x = n.b;
  }
  parts.push_back(follow(x, byte, raw));
  return alternate(std::move(parts));
}

Id Derivatives::derive_alt(Id x, uint8_t byte, bool raw) {
  std::vector<Id> parts;
  for (Id member : list_of(x)) {
    if (!first(member).has(byte)) continue;
    Id after = follow(member, byte, raw);
    if (after != EMPTY) parts.push_back(after);
  }
  return parts.size() == 1 ? parts[0] : alternate(std::move(parts));
}

Id Derivatives::derive_all(Id x, uint8_t byte, bool raw) {
  std::vector<Id> parts;
  for (Id member : list_of(x)) {
    Id after = follow(member, byte, raw);
    if (after == EMPTY) return EMPTY;
    parts.push_back(after);
  }
  return intersect(std::move(parts));
}

Id Derivatives::expand(Id x) {
  auto found = expanded_.find(x);
  if (found != expanded_.end()) return found->second;
  Id choice = expand_members(x);
  expanded_[x] = choice;
  return choice;
}

// The choice that a member list stands for.
Id Derivatives::expand_members(Id x) {
  const Node n = node(x);
  const MemberList list = member_list(x);
  const int32_t after = list.high >= 0 ? n.c + 1 : std::min(n.c + 1, std::max(list.low, 1));
  std::vector<Id> choices, body;
  if (n.nullable) choices.push_back(EPSILON);
  bool is_blocked = false;
  for (size_t i = 0; i < list.pairs.size() && !is_blocked; i++) {
    if (is_seen(list, n.b, i)) continue;
    body.push_back(concat(list.pairs[i], members_from(n.a, with_seen(list, n.b, i), after)));
    is_blocked = list.required[i] && !list.any_order;
  }
  if (list.extra != EMPTY && !is_blocked) {
    int32_t seen = list.any_order ? n.b : static_cast<int32_t>(list.pairs.size());
    body.push_back(concat(list.extra, members_from(n.a, seen, after)));
  }
  if (list.high < 0 || n.c < list.high) {
    choices.push_back(concat(n.c > 0 ? list.separator : EPSILON, alternate(std::move(body))));
  }
  return alternate(std::move(choices));
}

Id Derivatives::step(Id x, const uint8_t* data, size_t length) {
  for (size_t i = 0; i < length && x != EMPTY; i++) x = next_state(x, data[i]);
  return x;
}

bool Derivatives::is_final(Id x) {
  if (!nullable(x)) return false;
  ByteSet allowed = first(x);
  allowed &= producible_;
  for (uint8_t byte : representatives_) {
    if (allowed.has(byte) && next_state(x, byte) != EMPTY) return false;
  }
  return true;
}

// ---- emptiness -----------------------------------------------------------------------------------------------------

// Whether a derived intersection or complement has any text. At the limit the constraint is refused.
bool Derivatives::is_alive(Id x) {
  auto known = life_.find(x);
  if (known != life_.end()) return known->second == alive;
  Emptiness empty = is_empty(x);
  if (empty == Emptiness::undecided) throw Fault{STATES};
  life_[x] = empty == Emptiness::yes ? dead : alive;
  return empty == Emptiness::no;
}

Emptiness Derivatives::is_empty(Id x) {
  if (is_surely_alive(x, MAX_NESTING)) return Emptiness::no;
  NodeMap parents{{x, EMPTY}};
  std::deque<Frame> open{{x, 0}};
  for (bool from_back = true; !open.empty(); from_back = !from_back) {
    // Newest and oldest in turn: depth finds long texts, breadth is not led astray by recursion.
    Frame& frame = from_back ? open.back() : open.front();
    Id state = frame.state, after;
    try {
      after = next_successor(frame);
    } catch (const Fault& fault) {
      if (fault.code != UNDEFINED) throw;
      return Emptiness::undecided;
    }
    if (after == EMPTY) {
      from_back ? open.pop_back() : open.pop_front();
      continue;
    }
    if (is_known_dead(after) || !parents.emplace(after, state).second) continue;
    if (is_surely_alive(after, MAX_NESTING)) {
      for (Id at = after; is_sealed_ && at != EMPTY; at = parents[at]) life_[at] = alive;
      return Emptiness::no;
    }
    if (static_cast<int64_t>(parents.size()) > limits_.search_states) return Emptiness::undecided;
    open.push_back({after, 0});
  }
  if (is_sealed_) {
    for (const auto& entry : parents) life_[entry.first] = dead;
  }
  return Emptiness::yes;
}

bool Derivatives::is_known_dead(Id x) const {
  auto known = life_.find(x);
  return known != life_.end() && known->second == dead;
}

// The state's next successor that is not EMPTY; EMPTY when there are no more.
Id Derivatives::next_successor(Frame& frame) {
  ByteSet allowed = first(frame.state);
  allowed &= producible_;
  while (frame.next_class < class_count_) {
    const uint8_t byte = representatives_[frame.next_class++];
    if (!allowed.has(byte)) continue;
    Id after = follow(frame.state, byte, true);
    if (after != EMPTY) return after;
  }
  return EMPTY;
}

// Alive by its shape and by what is known, looked at to a depth; false says nothing.
bool Derivatives::is_surely_alive(Id x, int depth) const {
  if (nullable(x)) return true;
  if (is_plain(x)) return x != EMPTY;
  if (depth == 0) return false;
  while (kind(x) == Kind::cat) {
    if (!is_surely_alive(node(x).a, depth - 1)) return false;
    x = node(x).b;
  }
  if (nullable(x) || is_plain(x)) return x != EMPTY;
  switch (kind(x)) {
    case Kind::rep:
    case Kind::lexeme:
      return is_surely_alive(node(x).a, depth - 1);
    case Kind::alt: {
      const Id* begin = lists_.data() + node(x).a;
      return std::any_of(begin, begin + node(x).b, [&](Id member) { return is_surely_alive(member, depth - 1); });
    }
    case Kind::reference:
    case Kind::members:
      return is_sealed_;
    default: {
      auto known = life_.find(x);
      return known != life_.end() && known->second == alive;
    }
  }
}

}  // namespace lmprog
