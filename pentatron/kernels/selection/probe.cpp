#include "pentatron/kernels/selection/probe.h"

#include <cstring>

#include "pentatron/kernels/selection/probe_detail.h"

namespace pentatron::kernels {

namespace {

/// Words of 16 bits that are numbers between 1e-5 and 2 in every element type, of either sign.
void fill_ordinary(std::byte* data, size_t bytes) {
  uint32_t state = 1;
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    state = state * 1664525u + 1013904223u;
    const auto word = static_cast<uint16_t>((state >> 16 & 0x80FFu) | 0x3F00u);
    std::memcpy(data + i, &word, 2);
  }
}

Probe fill(OpClass c, ProbeMemory* memory, int64_t rows) {
  using namespace selection_detail;
  Probe probe{.op_class = c, .entries = {}};
  Arguments arguments(memory, rows);
  switch (c.op) {
  case Op::kGemm:
    probe_gemm(probe, arguments);
    break;
  case Op::kAttentionForward:
  case Op::kAttentionBackward:
  case Op::kCachedAttention:
    probe_attention(probe, arguments);
    break;
  case Op::kNormForward:
  case Op::kNormBackward:
  case Op::kRope:
  case Op::kActivationForward:
  case Op::kActivationBackward:
  case Op::kDropout:
  case Op::kSumRows:
    probe_rows(probe, arguments);
    break;
  case Op::kCrossEntropyStats:
  case Op::kCrossEntropyGradient:
  case Op::kCrossEntropy:
  case Op::kEmbedding:
  case Op::kEmbeddingGradient:
    probe_loss(probe, arguments);
    break;
  case Op::kQuantize:
    probe_quantize(probe, arguments);
    break;
  case Op::kHadamard:
    probe_hadamard(probe, arguments);
    break;
  default:
    probe_buffers(probe, arguments);
  }
  return probe;
}

} // namespace

ProbeMemory::Block::Block(size_t wanted) : bytes(wanted) {
  constexpr auto kSize = static_cast<size_t>(kPage);
  const size_t whole = (wanted + kSize - 1) / kSize * kSize;
  data.reset(static_cast<std::byte*>(::operator new[](whole, kPage)));
}

const void* ProbeMemory::input(size_t bytes) {
  if (next_input_ == inputs_.size()) inputs_.emplace_back();
  Block& block = inputs_[next_input_++];
  if (block.bytes < bytes) {
    block = Block(bytes);
    fill_ordinary(block.data.get(), bytes);
  }
  return block.data.get();
}

void* ProbeMemory::output(size_t bytes) {
  if (next_output_ == outputs_.size()) outputs_.emplace_back();
  Block& block = outputs_[next_output_++];
  if (block.bytes < bytes) block = Block(bytes);
  std::memset(block.data.get(), 0, bytes);
  return block.data.get();
}

int Probe::first() const {
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].refusal.empty()) return static_cast<int>(i);
  return -1;
}

std::vector<int> Probe::candidates() const {
  std::vector<int> fast;
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].refusal.empty() && entries[i].name != "reference")
      fast.push_back(static_cast<int>(i));
  if (fast.empty() && first() >= 0) fast.push_back(first());
  return fast;
}

Probe describe_probe(OpClass c) {
  return fill(c, nullptr, 256);
}

Probe make_probe(OpClass c, ProbeMemory& memory, int64_t rows) {
  memory.reset();
  return fill(c, &memory, rows);
}

} // namespace pentatron::kernels
