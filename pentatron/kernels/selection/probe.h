/// Examples of each class of arguments: what selection measures, and asks for refusals.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/kernels/selection/op_class.h"

namespace pentatron::kernels {

/// Memory for the arguments of one probe at a time. Inputs hold numbers of ordinary size in every
/// element type; outputs begin as zeros.
class ProbeMemory {
 public:
  /// What was taken before is free again.
  void reset() { next_input_ = next_output_ = 0; }
  const void* input(size_t bytes);
  void* output(size_t bytes);

 private:
  /// Whole pages: if host and GPU share memory, a page that both use moves back and forth.
  struct Block {
    static constexpr std::align_val_t kPage{64 << 10};
    struct Delete {
      void operator()(std::byte* p) const { ::operator delete[](p, kPage); }
    };
    std::unique_ptr<std::byte[], Delete> data;
    size_t bytes = 0;

    Block() = default;
    explicit Block(size_t wanted);
  };
  std::vector<Block> inputs_, outputs_;
  size_t next_input_ = 0, next_output_ = 0;
};

/// Units of Probe::work a second.
inline constexpr std::string_view kFlopsPerSecond = "FLOP/s", kBytesPerSecond = "B/s";

struct Probe {
  struct Entry {
    std::string_view name;
    std::string refusal;       ///< empty: it can run the example on this machine
    std::function<void()> run; ///< of make_probe() only
    /// Whether a token's result is the same alone and in a batch.
    bool per_token = true;
  };
  OpClass op_class;
  std::vector<Entry> entries; ///< in the order of the operator's list
  double work = 0;            ///< of one run: floating-point operations, or bytes read and written
  std::string_view unit = kBytesPerSecond;

  /// Position of the first entry that does not refuse, as list order chooses; -1 if all refuse.
  int first() const;
  /// Positions of the entries worth measuring: those that do not refuse, without the reference if
  /// there is another.
  std::vector<int> candidates() const;
};

/// Without memory: its entries cannot run.
Probe describe_probe(OpClass c);
/// Runs with `memory`, which must stay, and is reset by the next make_probe(). `rows` is the number
/// of rows or tokens of the example.
Probe make_probe(OpClass c, ProbeMemory& memory, int64_t rows);

} // namespace pentatron::kernels
