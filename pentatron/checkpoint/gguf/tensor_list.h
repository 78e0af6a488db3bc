/// The tensors of a model, as a family writes them down.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pentatron/checkpoint/gguf/structure.h"

namespace pentatron::checkpoint {

/// Adds `<gguf>.weight` [shape], and `<gguf>.bias` [shape[0] of the GGUF tensor] where there is
/// one.
class GgufTensorList {
 public:
  void add(std::string gguf, std::string hf, std::vector<int64_t> shape, bool bias = false,
           GgufOrder order = GgufOrder::kSame, int64_t heads = 1) {
    const int64_t out = order == GgufOrder::kTransposed ? shape.back() : shape.front();
    entries_.push_back({gguf + ".weight", hf + ".weight", std::move(shape), order, heads});
    if (!bias) return;
    const GgufOrder rows = order == GgufOrder::kRotary ? order : GgufOrder::kSame;
    entries_.push_back({gguf + ".bias", hf + ".bias", {out}, rows, heads});
  }
  /// A tensor under exactly these names.
  void add_named(std::string gguf, std::string hf, std::vector<int64_t> shape) {
    entries_.push_back({std::move(gguf), std::move(hf), std::move(shape)});
  }
  /// `<gguf>.weight` [experts, rows, columns] and `<gguf>.bias` [experts, rows].
  void add_stack(const std::string& gguf, const std::string& hf, std::vector<int64_t> shape,
                 bool bias) {
    std::vector<int64_t> of_bias(shape.begin(), shape.end() - 1);
    entries_.push_back({gguf + ".weight", hf + ".weight", std::move(shape)});
    if (bias) entries_.push_back({gguf + ".bias", hf + ".bias", std::move(of_bias)});
  }
  /// Rows [first, first + size) of each head of `hf`, in the file as [heads, rows, columns]; if
  /// transposed, as [heads, columns, rows].
  void add_head_rows(const std::string& gguf, const std::string& hf, std::vector<int64_t> shape,
                     int64_t heads, int64_t first, int64_t size, bool transposed) {
    entries_.push_back({.gguf = gguf + ".weight",
                        .hf = hf + ".weight",
                        .shape = std::move(shape),
                        .order = transposed ? GgufOrder::kTransposed : GgufOrder::kSame,
                        .heads = heads,
                        .first = first,
                        .size = size});
  }
  /// Of each of the last tensor's heads, so many rows at the end go from halves to neighbors.
  void rotate_last(int64_t heads, int64_t rotary) {
    entries_.back().order = GgufOrder::kRotary;
    entries_.back().heads = heads;
    entries_.back().rotary = rotary;
  }
  /// The file has the one row of the last tensor as a vector.
  void last_is_vector() { entries_.back().vector = true; }
  void shift_last(float shift) { entries_.back().shift = shift; }
  std::vector<GgufMapEntry> take() { return std::move(entries_); }

 private:
  std::vector<GgufMapEntry> entries_;
};

} // namespace pentatron::checkpoint
