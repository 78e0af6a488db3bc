#include "pentatron/nn/kv_cache.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"

namespace pentatron::nn {

namespace {

constexpr int64_t kGranule = 64; ///< tokens

int64_t rounded_up(int64_t tokens) {
  return (tokens + kGranule - 1) / kGranule * kGranule;
}

} // namespace

KvCache::KvCache(int64_t sequences) : lengths_(static_cast<size_t>(sequences), 0) {}

void KvCache::truncate(int64_t sequence, int64_t length) {
  int64_t& now = lengths_[static_cast<size_t>(sequence)];
  PT_DCHECK(length >= 0 && length <= now);
  now = length;
}

void KvCache::reserve(int64_t tokens) {
  capacity_ = std::max(capacity_, rounded_up(tokens));
}

void KvCache::begin(std::vector<Document> documents) {
  documents_ = std::move(documents);
  int64_t longest = 0;
  for (const Document& document : documents_)
    if (document.sequence >= 0)
      longest = std::max(longest, length(document.sequence) + document.count);
  if (longest > capacity_) capacity_ = rounded_up(std::max(longest, 2 * capacity_));
}

bool KvCache::all_new() const {
  return std::all_of(documents_.begin(), documents_.end(), [&](const Document& document) {
    return document.sequence < 0 || length(document.sequence) == 0;
  });
}

const KvCache::Layer& KvCache::append(const void* key, const at::Tensor& k_tgd,
                                      const at::Tensor& v_tgd) {
  Layer& layer = layers_[key];
  const auto keep = [&](at::Tensor& kept, const at::Tensor& added) {
    if (!kept.defined() || kept.size(1) < capacity_) {
      const at::Tensor larger =
          at::empty({sequences(), capacity_, added.size(1), added.size(2)}, added.options());
      if (kept.defined()) larger.narrow(1, 0, kept.size(1)).copy_(kept);
      kept = larger;
    }
    for (const Document& document : documents_) {
      if (document.sequence < 0) continue;
      kept.select(0, document.sequence)
          .narrow(0, length(document.sequence), document.count)
          .copy_(added.narrow(0, document.first, document.count));
    }
  };
  keep(layer.k, k_tgd);
  keep(layer.v, v_tgd);
  return layer;
}

void KvCache::end() {
  for (const Document& document : documents_)
    if (document.sequence >= 0) lengths_[static_cast<size_t>(document.sequence)] += document.count;
  documents_.clear();
}

int64_t KvCache::bytes() const {
  int64_t sum = 0;
  for (const auto& [key, layer] : layers_)
    sum += static_cast<int64_t>(layer.k.nbytes() + layer.v.nbytes());
  return sum;
}

} // namespace pentatron::nn
