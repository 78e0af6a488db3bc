/// The owner of the storage of parameters: layers request values and do not own them.
///
/// A segment is gathered and released as a whole. ResidentStore keeps everything in
/// memory; a store that shards parameters over data-parallel ranks (ZeRO-3) gathers in acquire()
/// and frees in release() without the layers knowing.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param.h"

namespace pentatron::nn {

/// Which pass a segment is needed for.
enum class Pass : uint8_t { kForward, kBackward };

/// A piece of a parameter inside a flat shard.
struct Piece {
  Param* param = nullptr;
  int64_t param_begin = 0; ///< first element of the rank's tensor, flattened
  int64_t begin = 0;       ///< in the shard's vectors, in elements
  int64_t size = 0;
};

/// A rank's part of parameters of one family: two vectors and whose elements they hold. Elements
/// that belong to no piece are padding: their gradient is zero and they stay zero.
struct Shard {
  at::Tensor values;    ///< [n]
  at::Tensor gradients; ///< [n] in the accumulate type; undefined: the family is frozen
  std::vector<Piece> pieces;
  comm::Group replicas; ///< the data-parallel ranks that own the same elements
  comm::Group tensor;   ///< the ranks whose shards hold the other parts of the same parameters

  bool trainable() const { return gradients.defined(); }
};

/// The elements of a piece that lie in `ranges` of the rank's tensor, as ranges of the shard.
std::vector<FlatRange> ranges_in_shard(const Piece& piece, const std::vector<FlatRange>& ranges);

class ParamStore {
 public:
  virtual ~ParamStore() = default;
  /// Values of the segment are defined from here. All ranks acquire and release in the same order.
  virtual void acquire(int64_t segment, Pass pass) = 0;
  /// Until here; after kBackward the segment's gradients of this microbatch are complete, but for
  /// deferred weight gradients.
  virtual void release(int64_t segment, Pass pass) = 0;
};

/// All values in one flat buffer and all gradients in another, so that the optimizer and the
/// reductions see two vectors. Families lie one after the other, frozen ones behind the others and
/// without gradients. Every parameter starts at a multiple of 64 elements; the gaps are zero and
/// stay zero.
class ResidentStore final : public ParamStore {
 public:
  struct Range {
    Param* param = nullptr;
    int64_t begin = 0; ///< in the flat buffers, in elements
    int64_t size = 0;
  };

  /// `gradients` false: for evaluation; no gradient buffer is made, and parameters that have a
  /// value keep it.
  ResidentStore(ParamList& params, at::Device device, bool gradients = true);

  void acquire(int64_t, Pass) override {}
  void release(int64_t, Pass) override {}

  const at::Tensor& values() const { return values_; }
  const at::Tensor& gradients() const { return gradients_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  /// One for each family.
  std::vector<Shard> shards() const;

 private:
  at::Tensor values_, gradients_;
  std::vector<Range> ranges_;
};

} // namespace pentatron::nn
