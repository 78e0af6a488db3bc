#include "pentatron/nn/kv_cache.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/formats.h"
#include "pentatron/kernels/quantize/fp8_rows.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::nn {

KvCache::KvCache(int64_t sequences, bool fp8)
    : fp8_(fp8), lengths_(static_cast<size_t>(sequences), 0) {}

void KvCache::truncate(int64_t sequence, int64_t length) {
  int64_t& now = lengths_[static_cast<size_t>(sequence)];
  PT_DCHECK(length >= 0 && length <= now);
  now = length;
  const auto pages = static_cast<size_t>((length + kPage - 1) / kPage);
  for (auto& [key, layer] : layers_) {
    Pages& kept = layer[static_cast<size_t>(sequence)];
    kept.k.resize(std::min(kept.k.size(), pages));
    kept.v.resize(std::min(kept.v.size(), pages));
  }
}

void KvCache::begin(std::vector<Document> documents, std::vector<Document> sources) {
  documents_ = std::move(documents);
  sources_ = std::move(sources);
}

bool KvCache::all_new() const {
  return std::all_of(documents_.begin(), documents_.end(), [&](const Document& document) {
    return document.sequence < 0 || length(document.sequence) == 0;
  });
}

const KvCache::Layer& KvCache::append(const void* key, const at::Tensor& k_tgd,
                                      const at::Tensor& v_tgd) {
  const auto kept_as = [&](const at::Tensor& x) {
    return fp8_ && x.defined() ? to_fp8_rows(x) : x;
  };
  const at::Tensor k = kept_as(k_tgd), v = kept_as(v_tgd);
  Layer& layer = layers_.try_emplace(key, lengths_.size()).first->second;
  const auto keep = [&](std::vector<at::Tensor>& pages, const Document& document,
                        const at::Tensor& added) {
    const int64_t begin = length(document.sequence), end = begin + document.count;
    for (int64_t token = begin; token < end;) {
      const auto page = static_cast<size_t>(token / kPage);
      if (page == pages.size())
        pages.push_back(at::empty({kPage, added.size(1), added.size(2)}, added.options()));
      const int64_t place = token % kPage, count = std::min(end - token, kPage - place);
      if (pages[page].use_count() > 1) pages[page] = pages[page].clone(); // others read it
      pages[page]
          .narrow(0, place, count)
          .copy_(added.narrow(0, document.first + token - begin, count));
      token += count;
    }
  };
  for (const Document& document : documents_) {
    if (document.sequence < 0) continue;
    Pages& kept = layer[static_cast<size_t>(document.sequence)];
    keep(kept.k, document, k);
    if (v.defined()) keep(kept.v, document, v);
  }
  return layer;
}

void KvCache::end() {
  for (const Document& document : documents_)
    if (document.sequence >= 0) lengths_[static_cast<size_t>(document.sequence)] += document.count;
  documents_.clear();
  sources_.clear();
}

KvCache::Block KvCache::block(int64_t sequence, int64_t page) const {
  PT_DCHECK((page + 1) * kPage <= length(sequence));
  Block block;
  for (const auto& [key, layer] : layers_) {
    const Pages& pages = layer[static_cast<size_t>(sequence)];
    const auto at = static_cast<size_t>(page);
    block.k.push_back(pages.k[at]);
    block.v.push_back(pages.v.empty() ? at::Tensor() : pages.v[at]);
  }
  return block;
}

void KvCache::adopt(int64_t sequence, const Block& block) {
  int64_t& length = lengths_[static_cast<size_t>(sequence)];
  PT_DCHECK(length % kPage == 0 && block.k.size() == layers_.size());
  size_t i = 0;
  for (auto& [key, layer] : layers_) {
    Pages& pages = layer[static_cast<size_t>(sequence)];
    pages.k.push_back(block.k[i]);
    if (block.v[i].defined()) pages.v.push_back(block.v[i]);
    ++i;
  }
  length += kPage;
}

void KvCache::replace(int64_t sequence, int64_t page, const Block& block) {
  PT_DCHECK((page + 1) * kPage <= length(sequence) && block.k.size() == layers_.size());
  size_t i = 0;
  for (auto& [key, layer] : layers_) {
    Pages& pages = layer[static_cast<size_t>(sequence)];
    pages.k[static_cast<size_t>(page)] = block.k[i];
    if (block.v[i].defined()) pages.v[static_cast<size_t>(page)] = block.v[i];
    ++i;
  }
}

void KvCache::set_memory(const void* key, int64_t sequence, Memory memory) {
  memories_.try_emplace(key, lengths_.size()).first->second[static_cast<size_t>(sequence)] =
      std::move(memory);
}

const KvCache::Memory& KvCache::memory(const void* key, int64_t sequence) const {
  return memories_.at(key)[static_cast<size_t>(sequence)];
}

int64_t KvCache::bytes() const {
  size_t sum = 0;
  std::set<const void*> counted;
  const auto add = [&](const std::vector<at::Tensor>& pages) {
    for (const at::Tensor& page : pages)
      if (counted.insert(page.const_data_ptr()).second) sum += page.nbytes();
  };
  for (const auto& [key, layer] : layers_) {
    for (const Pages& pages : layer) {
      add(pages.k);
      add(pages.v);
    }
  }
  for (const auto& [key, memories] : memories_)
    for (const Memory& memory : memories)
      if (memory.k.defined()) sum += memory.k.nbytes() + memory.v.nbytes();
  return static_cast<int64_t>(sum);
}

at::Tensor to_fp8_rows(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() += kernels::kFp8ScaleBytes;
  if (!x.is_cpu()) { // the same steps
    const at::Tensor numbers = x.to(at::kFloat);
    const at::Tensor share = numbers.abs().amax({-1}, true) / kernels::kE4M3.largest;
    const at::Tensor scale = at::where(share == 0, 1, share);
    return at::cat({(numbers / scale)
                        .clamp(-kernels::kE4M3.largest, kernels::kE4M3.largest)
                        .to(at::kFloat8_e4m3fn)
                        .view(at::kByte),
                    scale.view(at::kByte)},
                   -1);
  }
  const at::Tensor packed = x.contiguous();
  const at::Tensor bytes = at::empty(sizes, x.options().dtype(at::kByte));
  kernels::to_fp8_rows(kernel_dtype(x.scalar_type()), x.numel() / x.size(-1), x.size(-1),
                       packed.const_data_ptr(), bytes.data_ptr<uint8_t>());
  return bytes;
}

at::Tensor from_fp8_rows(const at::Tensor& bytes, at::ScalarType dtype) {
  const int64_t cols = bytes.size(-1) - kernels::kFp8ScaleBytes;
  if (!bytes.is_cpu()) {
    const at::Tensor scale =
        bytes.narrow(-1, cols, kernels::kFp8ScaleBytes).contiguous().view(at::kFloat);
    return (bytes.narrow(-1, 0, cols).contiguous().view(at::kFloat8_e4m3fn).to(at::kFloat) * scale)
        .to(dtype);
  }
  const at::Tensor packed = bytes.contiguous();
  std::vector<int64_t> sizes = bytes.sizes().vec();
  sizes.back() = cols;
  const at::Tensor x = at::empty(sizes, bytes.options().dtype(dtype));
  kernels::from_fp8_rows(kernel_dtype(dtype), x.numel() / cols, cols,
                         packed.const_data_ptr<uint8_t>(), x.data_ptr());
  return x;
}

} // namespace pentatron::nn
