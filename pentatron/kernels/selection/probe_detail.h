/// What the probes of all operators share.
#pragma once

#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/selection/probe.h"

namespace pentatron::kernels::selection_detail {

/// Gives the arguments of a probe their memory; null pointers without one.
class Arguments {
 public:
  Arguments(ProbeMemory* memory, int64_t rows) : memory_(memory), rows_(rows) {}

  int64_t rows() const { return rows_; }
  const void* input(DType dtype, int64_t n) {
    return memory_ == nullptr ? nullptr : memory_->input(element_size(dtype) * n);
  }
  void* output(DType dtype, int64_t n) {
    return memory_ == nullptr ? nullptr : memory_->output(element_size(dtype) * n);
  }
  /// `n` zeros, which the caller may fill; null without memory.
  template <class T> T* values(int64_t n) {
    return memory_ == nullptr ? nullptr : static_cast<T*>(memory_->output(sizeof(T) * n));
  }
  /// Numbers below `limit` that visit all of them in no order.
  const int64_t* ids(int64_t n, int64_t limit) {
    auto* const ids = values<int64_t>(n);
    for (int64_t i = 0; ids != nullptr && i < n; ++i) ids[i] = i * 797 % limit;
    return ids;
  }
  Context workspace(size_t bytes) {
    Context context;
    if (memory_ != nullptr && bytes > 0)
      context.workspace = {static_cast<std::byte*>(memory_->output(bytes)), bytes};
    return context;
  }

 private:
  ProbeMemory* memory_;
  int64_t rows_;
};

template <class Args>
void add_entries(Probe& probe, std::span<const Entry<Args>> entries, const Args& args,
                 const Context& context = {}) {
  for (const Entry<Args>& entry : entries)
    probe.entries.push_back({entry.name, entry.refuse(args, context),
                             [run = entry.run, args, context] { run(args, context); }});
}

/// Bytes of `n` elements.
inline double bytes(DType dtype, int64_t n) {
  return static_cast<double>(element_size(dtype)) * static_cast<double>(n);
}

/// Each fills the probe of its class.
void probe_gemm(Probe& probe, Arguments& arguments);
void probe_attention(Probe& probe, Arguments& arguments);
void probe_rows(Probe& probe, Arguments& arguments);    ///< norm, rope, activation, dropout
void probe_loss(Probe& probe, Arguments& arguments);    ///< cross-entropy, embedding
void probe_buffers(Probe& probe, Arguments& arguments); ///< optimizer and flat buffers
void probe_quantize(Probe& probe, Arguments& arguments);
void probe_hadamard(Probe& probe, Arguments& arguments);

} // namespace pentatron::kernels::selection_detail
