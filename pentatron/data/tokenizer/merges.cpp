#include "pentatron/data/tokenizer/merges.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "pentatron/base/error.h"

namespace pentatron::data::tokenizer {

namespace {
constexpr size_t kShort = 40;
}

Merges::Merges(size_t count) : slots_(std::bit_ceil(count * 2 + 2)), mask_(slots_.size() - 1) {}

void Merges::set(int32_t left, int32_t right, Result result) {
  PT_DCHECK(size_ + 1 < slots_.size());
  const uint64_t key = key_of(left, right);
  size_t i = hash(key) & mask_;
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  if (slots_[i].key == kEmpty) ++size_;
  slots_[i] = {key, result};
}

void Merges::apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2 || size_ == 0) return;
  if (symbols.size() <= kShort) {
    apply_short(symbols);
  } else {
    apply_long(symbols);
  }
}

void Merges::apply_short(std::vector<int32_t>& symbols) const {
  Result pairs[kShort]; // of symbols i and i + 1
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNone) break;
    symbols[best] = pairs[best].token;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 2 < n) std::copy(pairs + best + 2, pairs + n - 1, pairs + best + 1);
    --n;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void Merges::apply_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    int32_t left, right, token;
    bool operator<(const Candidate& o) const { // the queue's top is the largest
      return rank != o.rank ? rank > o.rank : at > o.at;
    }
  };
  const size_t n = symbols.size();
  PT_DCHECK(n < kNone);
  constexpr uint32_t kEnd = kNone;
  constexpr int32_t kGone = INT32_MIN;
  std::vector<uint32_t> previous(n), next(n);
  for (size_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : static_cast<uint32_t>(i - 1);
    next[i] = i + 1 == n ? kEnd : static_cast<uint32_t>(i + 1);
  }
  std::vector<Candidate> candidates;
  const auto candidate = [&](uint32_t at, auto&& take) {
    const uint32_t right = next[at];
    if (right == kEnd) return;
    const Result found = find(symbols[at], symbols[right]);
    if (found.rank != kNone)
      take(Candidate{found.rank, at, symbols[at], symbols[right], found.token});
  };
  for (size_t i = 0; i + 1 < n; ++i)
    candidate(static_cast<uint32_t>(i), [&](const Candidate& c) { candidates.push_back(c); });
  std::priority_queue<Candidate> queue(std::less<Candidate>{}, std::move(candidates));
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    if (symbols[c.at] != c.left) continue;
    const uint32_t right = next[c.at];
    if (right == kEnd || symbols[right] != c.right) continue;
    symbols[c.at] = c.token;
    symbols[right] = kGone;
    next[c.at] = next[right];
    if (next[right] != kEnd) previous[next[right]] = c.at;
    const auto push = [&](const Candidate& new_pair) { queue.push(new_pair); };
    if (previous[c.at] != kEnd) candidate(previous[c.at], push);
    candidate(c.at, push);
  }
  size_t out = 0;
  for (uint32_t i = 0; i != kEnd; i = next[i]) symbols[out++] = symbols[i];
  symbols.resize(out);
}

} // namespace pentatron::data::tokenizer
