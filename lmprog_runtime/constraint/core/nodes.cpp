#include "nodes.h"

#include <algorithm>
#include <limits>

namespace lmprog {

namespace {

constexpr size_t NODE_BYTES = sizeof(Node) + 40;  // with its hash, table slot, transition row pointer and first set

uint32_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

uint32_t hash_of(const Node& node, const Id* list, const ByteSet* set) {
  uint32_t hash = mix(0x2545F491, static_cast<uint64_t>(node.kind));
  if (set) {
    for (uint64_t word : set->words) hash = mix(hash, word ^ word >> 29);
  } else if (list) {
    for (Id i = 0; i < node.b; i++) hash = mix(hash, static_cast<uint32_t>(list[i]));
  } else {
    hash = mix(mix(mix(hash, static_cast<uint32_t>(node.a)), static_cast<uint32_t>(node.b)), static_cast<uint32_t>(node.c));
  }
  return hash;
}

void sort_unique(std::vector<Id>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

bool contains(const std::vector<Id>& sorted, Id value) { return std::binary_search(sorted.begin(), sorted.end(), value); }

}  // namespace

Nodes::Nodes(const Limits& limits) : limits_(limits), table_(1024, -1) {
  start_clock(limits.compile_seconds);
  add({Kind::empty, 0, 1, 0, 0, 0, 0}, nullptr, nullptr);
  add({Kind::epsilon, 1, 1, 0, 0, 0, 0}, nullptr, nullptr);
  everything_ = complement(EMPTY);
}

void Nodes::start_clock(double seconds) {
  budget_ = seconds;
  deadline_ = -1;
}

// Processor time of the calling thread: whether a constraint is refused must not depend on how busy the machine is. The
// clock is read only every 256 ticks, and first then, so that short calls do not pay for it.
void Nodes::check_time() const {
  if ((++ticks_ & 255) != 0) return;
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  if (deadline_ < 0) deadline_ = seconds + budget_;
  if (seconds > deadline_) throw Fault{TIME};
}

size_t Nodes::bytes() const {
  return nodes_.size() * NODE_BYTES + lists_.size() * sizeof(Id) + sets_.size() * sizeof(ByteSet) +
         seen_sets_.size() * 256;
}

std::vector<Id> Nodes::list_of(Id x) const {
  const Node& n = nodes_[x];
  return {lists_.begin() + n.a, lists_.begin() + n.a + n.b};
}

// ---- storage -------------------------------------------------------------------------------------------------------

Id Nodes::add(const Node& candidate, const Id* list, const ByteSet* set) {
  if (candidate.left_depth > MAX_NESTING) throw Fault{NESTING};
  if (static_cast<int64_t>(nodes_.size()) >= limits_.nodes) throw Fault{STATES};
  if ((nodes_.size() & 1023) == 0 && static_cast<int64_t>(bytes()) > limits_.arena_bytes) throw Fault{BYTES};
  check_time();
  Node node = candidate;
  if (list) {
    node.a = static_cast<Id>(lists_.size());
    lists_.insert(lists_.end(), list, list + node.b);
  }
  if (set) {
    node.a = static_cast<Id>(sets_.size());
    sets_.push_back(*set);
  }
  nodes_.push_back(node);
  return static_cast<Id>(nodes_.size() - 1);
}

bool Nodes::is_same(const Node& existing, const Node& candidate, const Id* list, const ByteSet* set) const {
  if (existing.kind != candidate.kind) return false;
  if (set) return sets_[existing.a] == *set;
  if (list) return existing.b == candidate.b && std::equal(list, list + candidate.b, lists_.begin() + existing.a);
  return existing.a == candidate.a && existing.b == candidate.b && existing.c == candidate.c;
}

Id Nodes::find_or_add(const Node& candidate, const Id* list, const ByteSet* set) {
  uint32_t hash = hash_of(candidate, list, set);
  size_t mask = table_.size() - 1;
  size_t slot = hash & mask;
  for (; table_[slot] >= 0; slot = (slot + 1) & mask) {
    Id found = table_[slot];
    if (hashes_[found] == hash && is_same(nodes_[found], candidate, list, set)) return found;
  }
  Id added = add(candidate, list, set);
  hashes_.resize(added + 1);
  hashes_[added] = hash;
  table_[slot] = added;
  if (nodes_.size() * 2 > table_.size()) grow_table();
  return added;
}

void Nodes::grow_table() {
  table_.assign(table_.size() * 2, -1);
  size_t mask = table_.size() - 1;
  for (Id x = EPSILON + 1; x < static_cast<Id>(nodes_.size()); x++) {
    size_t slot = hashes_[x] & mask;
    while (table_[slot] >= 0) slot = (slot + 1) & mask;
    table_[slot] = x;
  }
}

Id Nodes::unary(Kind kind, Id a, Id b, Id c, bool nullable) {
  uint16_t depth = static_cast<uint16_t>(nodes_[a].left_depth + 1);
  const bool is_plain = kind != Kind::complement && nodes_[a].is_plain;
  return find_or_add({kind, nullable, is_plain, depth, a, b, c}, nullptr, nullptr);
}

// ---- constructors --------------------------------------------------------------------------------------------------

Id Nodes::byte_set(const ByteSet& set) {
  if (!set.any()) return EMPTY;
  size_t before = nodes_.size();
  Id found = find_or_add({Kind::set, 0, 1, 0, 0, 0, 0}, nullptr, &set);
  if (nodes_.size() != before) split_classes(set);
  return found;
}

Id Nodes::byte(uint8_t value) {
  ByteSet set;
  set.add(value);
  return byte_set(set);
}

// Byte classes get finer with each new set; what is known of transitions by class is then void.
void Nodes::split_classes(const ByteSet& set) {
  std::array<int, 512> renamed;
  renamed.fill(-1);
  std::array<uint8_t, 256> classes;
  int count = 0;
  for (int byte = 0; byte < 256; byte++) {
    int& name = renamed[classes_[byte] * 2 + set.has(static_cast<uint8_t>(byte))];
    if (name < 0) name = count++;
    classes[byte] = static_cast<uint8_t>(name);
  }
  if (count == class_count_) return;
  classes_ = classes;
  class_count_ = count;
  forget_transitions();
}

Id Nodes::literal(const uint8_t* data, size_t length) {
  Id result = EPSILON;
  for (size_t i = length; i-- > 0;) result = concat(byte(data[i]), result);
  return result;
}

Id Nodes::concat(Id a, Id b) {
  if (a == EMPTY || b == EMPTY) return EMPTY;
  if (a == EPSILON) return b;
  if (b == EPSILON) return a;
  std::vector<Id> spine;
  while (kind(a) == Kind::cat) {
    spine.push_back(nodes_[a].a);
    a = nodes_[a].b;
  }
  spine.push_back(a);
  for (size_t i = spine.size(); i-- > 0;) {
    const Node head = nodes_[spine[i]], tail = nodes_[b];
    const int depth = std::max<int>(head.left_depth + 1, head.nullable ? tail.left_depth : 0);
    const bool is_nullable = head.nullable && tail.nullable, is_plain = head.is_plain && tail.is_plain;
    b = find_or_add({Kind::cat, is_nullable, is_plain, static_cast<uint16_t>(depth), spine[i], b, 0}, nullptr, nullptr);
  }
  return b;
}

void Nodes::flatten(Kind kind, std::vector<Id>& members) const {
  std::vector<Id> flat;
  for (Id x : members) {
    const Node& n = nodes_[x];
    if (n.kind == kind) {
      flat.insert(flat.end(), lists_.begin() + n.a, lists_.begin() + n.a + n.b);
    } else if (x != EMPTY) {
      flat.push_back(x);
    }
  }
  members.swap(flat);
  sort_unique(members);
}

// All sets among the members become one. Returns it, or -1 when there was nothing to merge.
Id Nodes::merge_sets(std::vector<Id>& members, bool is_union) {
  ByteSet merged = is_union ? ByteSet{} : ByteSet::full();
  int count = 0;
  for (Id x : members) {
    if (kind(x) != Kind::set) continue;
    count++;
    is_union ? merged |= set_of(x) : merged &= set_of(x);
  }
  if (count < 2) return -1;
  members.erase(std::remove_if(members.begin(), members.end(), [&](Id x) { return kind(x) == Kind::set; }), members.end());
  Id set = byte_set(merged);
  members.push_back(set);
  sort_unique(members);
  return set;
}

Id Nodes::alternate(std::vector<Id> members) {
  flatten(Kind::alt, members);
  if (contains(members, everything_)) return everything_;
  merge_sets(members, true);
  if (members.size() > 1 && members.size() <= FACTORED_WIDTH) {
    factor_tails(members);
    merge_counts(members);
  }
  bool other_nullable = false;
  for (Id x : members) other_nullable |= x != EPSILON && nodes_[x].nullable;
  if (other_nullable && contains(members, EPSILON)) members.erase(std::find(members.begin(), members.end(), EPSILON));
  if (members.empty()) return EMPTY;
  return list_node(Kind::alt, members, other_nullable || contains(members, EPSILON));
}

// x.r | y.r is (x|y).r
void Nodes::factor_tails(std::vector<Id>& members) {
  std::vector<std::pair<Id, Id>> tails;  // (tail, member)
  for (Id x : members) {
    if (kind(x) == Kind::cat) tails.emplace_back(nodes_[x].b, x);
  }
  if (tails.size() < 2) return;
  std::sort(tails.begin(), tails.end());
  for (size_t i = 0, j; i < tails.size(); i = j) {
    for (j = i + 1; j < tails.size() && tails[j].first == tails[i].first;) j++;
    if (j == i + 1) continue;
    std::vector<Id> heads;
    for (size_t k = i; k < j; k++) {
      heads.push_back(nodes_[tails[k].second].a);
      members.erase(std::find(members.begin(), members.end(), tails[k].second));
    }
    members.push_back(concat(alternate(heads), tails[i].first));
  }
  sort_unique(members);
}

// x{0,3} | x{2,5} is x{0,5}
void Nodes::merge_counts(std::vector<Id>& members) {
  constexpr int32_t unbounded = std::numeric_limits<int32_t>::max();
  std::vector<std::array<int32_t, 4>> spans;  // child, low, high, member
  for (Id x : members) {
    const Node& n = nodes_[x];
    if (n.kind == Kind::rep) spans.push_back({n.a, n.b, n.c < 0 ? unbounded : n.c, x});
  }
  if (spans.size() < 2) return;
  std::sort(spans.begin(), spans.end());
  for (size_t i = 0, j; i < spans.size(); i = j) {
    int32_t high = spans[i][2];
    for (j = i + 1; j < spans.size() && spans[j][0] == spans[i][0] && (high == unbounded || spans[j][1] <= high + 1); j++) {
      high = std::max(high, spans[j][2]);
    }
    if (j == i + 1) continue;
    for (size_t k = i; k < j; k++) members.erase(std::find(members.begin(), members.end(), spans[k][3]));
    members.push_back(repeat(spans[i][0], spans[i][1], high == unbounded ? -1 : high));
  }
  sort_unique(members);
}

Id Nodes::list_node(Kind kind, std::vector<Id>& members, bool nullable) {
  if (members.size() == 1) return members[0];
  if (static_cast<int64_t>(members.size()) > limits_.width) throw Fault{WIDTH};
  int depth = 0;
  bool is_plain = kind == Kind::alt;
  for (Id x : members) {
    depth = std::max<int>(depth, nodes_[x].left_depth);
    is_plain = is_plain && nodes_[x].is_plain;
  }
  Node candidate{kind, nullable, is_plain, static_cast<uint16_t>(depth + 1), 0, static_cast<Id>(members.size()), 0};
  return find_or_add(candidate, members.data(), nullptr);
}

Id Nodes::intersect(std::vector<Id> members) {
  for (Id x : members) {
    if (x == EMPTY) return EMPTY;
  }
  flatten(Kind::all, members);
  members.erase(std::remove(members.begin(), members.end(), everything_), members.end());
  if (merge_sets(members, false) == EMPTY) return EMPTY;
  bool all_nullable = true;
  for (Id x : members) {
    all_nullable &= nodes_[x].nullable;
    if (kind(x) == Kind::complement && contains(members, nodes_[x].a)) return EMPTY;
  }
  if (contains(members, EPSILON)) return all_nullable ? EPSILON : EMPTY;
  if (members.empty()) return everything_;
  return list_node(Kind::all, members, all_nullable);
}

Id Nodes::complement(Id a) {
  if (kind(a) == Kind::complement) return nodes_[a].a;
  return unary(Kind::complement, a, 0, 0, !nodes_[a].nullable);
}

Id Nodes::repeat(Id a, int32_t low, int32_t high) {
  if (high == 0 || a == EPSILON) return EPSILON;
  if (a == EMPTY) return low == 0 ? EPSILON : EMPTY;
  if (low == 1 && high == 1) return a;
  if (nodes_[a].nullable) low = 0;
  if (low == 0 && high == 1) return alternate({EPSILON, a});
  if (kind(a) == Kind::rep && nodes_[a].b == 0 && nodes_[a].c < 0) return a;
  return unary(Kind::rep, a, low, high, low == 0);
}

Id Nodes::lexeme(Id a) {
  if (a == EMPTY || a == EPSILON || kind(a) == Kind::lexeme) return a;
  return unary(Kind::lexeme, a, 0, 0, nodes_[a].nullable);
}

Id Nodes::reference(bool nullable) {
  definitions_.push_back(-1);
  return find_or_add({Kind::reference, nullable, 0, 1, static_cast<Id>(definitions_.size() - 1), 0, 0}, nullptr, nullptr);
}

void Nodes::define(Id reference, Id definition) { definitions_[nodes_[reference].a] = definition; }

// ---- members of objects --------------------------------------------------------------------------------------------

Id Nodes::members(MemberList list) {
  member_lists_.push_back(std::move(list));
  if (seen_sets_.empty()) seen_sets_.emplace_back();
  return members_from(static_cast<int32_t>(member_lists_.size() - 1), 0, 0);
}

// `seen` is a position when members come in order, else the index of a bit set (0: the empty one).
bool Nodes::is_seen(const MemberList& list, int32_t seen, size_t index) const {
  if (!list.any_order) return index < static_cast<size_t>(seen);
  const auto& bits = seen_sets_[seen];
  return index / 64 < bits.size() && bits[index / 64] >> (index % 64) & 1;
}

int32_t Nodes::with_seen(const MemberList& list, int32_t seen, size_t index) {
  if (!list.any_order) return static_cast<int32_t>(index + 1);
  std::vector<uint64_t> bits = seen_sets_[seen];
  bits.resize(std::max(bits.size(), index / 64 + 1));
  bits[index / 64] |= 1ull << (index % 64);
  auto [found, is_new] = seen_index_.try_emplace(bits, static_cast<int32_t>(seen_sets_.size()));
  if (is_new) seen_sets_.push_back(bits);
  return found->second;
}

Id Nodes::members_from(int32_t index, int32_t seen, int32_t count) {
  const MemberList& list = member_lists_[index];
  int32_t left = 0, must = 0;
  int depth = std::max<int>(nodes_[list.separator].left_depth, nodes_[list.extra].left_depth);
  for (size_t i = 0; i < list.pairs.size(); i++) {
    depth = std::max<int>(depth, nodes_[list.pairs[i]].left_depth);
    if (is_seen(list, seen, i)) continue;
    left++;
    must += list.required[i];
  }
  if ((count + left < list.low && list.extra == EMPTY) || (list.high >= 0 && count + must > list.high)) return EMPTY;
  bool nullable = must == 0 && count >= list.low;
  return find_or_add({Kind::members, nullable, 0, static_cast<uint16_t>(depth + 3), index, seen, count}, nullptr, nullptr);
}

}  // namespace lmprog
