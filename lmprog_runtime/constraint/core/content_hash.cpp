#include "content_hash.h"

#include <algorithm>
#include <atomic>
#include <random>

namespace lmprog {

namespace {

struct Secret {
  uint64_t a, b;
};

const Secret& secret() {
  static const Secret value = [] {
    std::random_device source;
    auto draw = [&] { return (static_cast<uint64_t>(source()) << 32 | source()) | 1; };
    return Secret{draw(), draw()};
  }();
  return value;
}

uint64_t folded_product(uint64_t x, uint64_t y) {
  __uint128_t product = static_cast<__uint128_t>(x) * y;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void absorb(ContentHash& hash, uint64_t value) {
  hash.high = folded_product(hash.high ^ value, secret().a) + 0x9E3779B97F4A7C15ull;
  hash.low = folded_product(hash.low ^ (value + hash.high), secret().b) + 0xD1B54A32D192ED03ull;
}

void absorb(ContentHash& hash, const ContentHash& other) {
  absorb(hash, other.high);
  absorb(hash, other.low);
}

}  // namespace

ContentHasher::ContentHasher(Derivatives& nodes) : nodes_(nodes) {
  static std::atomic<uint64_t> arenas{0};
  arena_number_ = ++arenas;
}

ContentHash ContentHasher::of(Id x) {
  std::vector<Id> stack{x};
  while (!stack.empty()) {
    Id top = stack.back();
    if (known_.count(top)) {
      stack.pop_back();
      continue;
    }
    size_t before = stack.size();
    push_missing_children(top, stack);
    if (stack.size() != before) continue;
    known_[top] = combine(top);
    stack.pop_back();
  }
  return known_[x];
}

void ContentHasher::push_missing_children(Id x, std::vector<Id>& stack) {
  const Node& n = nodes_.node(x);
  auto push = [&](Id child) {
    if (!known_.count(child)) stack.push_back(child);
  };
  switch (n.kind) {
    case Kind::cat:
      push(n.a);
      push(n.b);
      break;
    case Kind::rep:
    case Kind::complement:
    case Kind::lexeme:
      push(n.a);
      break;
    case Kind::alt:
    case Kind::all:
      for (Id member : nodes_.list_of(x)) push(member);
      break;
    default:
      break;
  }
}

ContentHash ContentHasher::combine(Id x) {
  const Node& n = nodes_.node(x);
  ContentHash hash{secret().b, secret().a};
  absorb(hash, static_cast<uint64_t>(n.kind));
  switch (n.kind) {
    case Kind::set:
      for (uint64_t word : nodes_.set_of(x).words) absorb(hash, word);
      break;
    case Kind::cat:
      absorb(hash, known_[n.a]);
      absorb(hash, known_[n.b]);
      break;
    case Kind::rep:
      absorb(hash, known_[n.a]);
      absorb(hash, static_cast<uint64_t>(n.b) << 32 | static_cast<uint32_t>(n.c));
      break;
    case Kind::complement:
    case Kind::lexeme:
      absorb(hash, known_[n.a]);
      break;
    case Kind::alt:
    case Kind::all: {
      std::vector<ContentHash> members;
      for (Id member : nodes_.list_of(x)) members.push_back(known_[member]);
      std::sort(members.begin(), members.end());
      for (const ContentHash& member : members) absorb(hash, member);
      break;
    }
    case Kind::reference:
    case Kind::members:
      absorb(hash, arena_number_);
      absorb(hash, static_cast<uint64_t>(x));
      break;
    default:
      break;
  }
  return hash;
}

}  // namespace lmprog
