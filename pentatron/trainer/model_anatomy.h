/// What the memory estimate knows of a model: its segments by kind, of each the elements of its
/// parameters and what it keeps for backward by token, on the first rank of the axes that split
/// layers. Numbers are doubles: a configuration can ask for more than 64 bits count.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "pentatron/models/model.h"
#include "pentatron/nn/shard_spec.h"
#include "pentatron/optim/rule.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// What elementwise work takes as long for a byte of its result, roughly: time and memory bandwidth
/// of a layer's GEMMs.
inline constexpr double kFlopsOfByte = 32;

struct ElementTypes {
  double element = 4, acc = 4; ///< bytes
  at::ScalarType dtype = at::kFloat;
};
ElementTypes types_of(Precision precision);

/// Elements of parameters, and bytes that the optimizer keeps of them.
struct Elements {
  double count = 0, state = 0;
  double padding = 0; ///< of the count, rows of the vocabulary that are no parameters
  double vectors = 0; ///< bytes that offload.optimizer can move; of these
  double whole = 0;   ///< by rules that need whole parameters
  double whole_count = 0, whole_state = 0;
  double linear = 0;              ///< of weights of linear layers
  double longest = 0;             ///< elements of the largest parameter
  double largest = 0;             ///< and of the largest of whole_count
  optim::UpdateBytes update = {}; ///< the most of each

  double real() const { return count - padding; }
  void add(const Elements& more, double times) {
    count += times * more.count;
    padding += times * more.padding;
    state += times * more.state;
    vectors += times * more.vectors;
    whole += times * more.whole;
    whole_count += times * more.whole_count;
    whole_state += times * more.whole_state;
    linear += times * more.linear;
    if (times <= 0) return;
    longest = std::max(longest, more.longest);
    largest = std::max(largest, more.largest);
    update = {.batch = std::max(update.batch, more.update.batch),
              .working = std::max(update.working, more.update.working)};
  }
};

/// By the ranks that hold the same: nn::ReductionGroup.
struct Parameters {
  Elements dense, experts;

  void add(const Parameters& more, double times) {
    dense.add(more.dense, times);
    experts.add(more.experts, times);
  }
  Elements all() const {
    Elements sum = dense;
    sum.add(experts, 1);
    return sum;
  }
};

/// A kind of segment on one tensor rank.
struct Kind {
  Parameters parameters; ///< that its segments read
  /// Elements of each of these that is in whole_count, by the segment that is their first reader.
  std::vector<int64_t> whole_dense, whole_experts;
  double saved = 0;      ///< bytes kept from forward to backward, by token of train.seq_length
  double freed = 0;      ///< of these, by the parts that are recomputed
  double working = 0;    ///< what backward holds beside what is still kept, at most
  double weights = 0;    ///< beside `working`, whatever the number of tokens: bytes of weights
  double parts_time = 0; ///< FLOPs of these parts by token, or what takes as long
  double time = 0;       ///< of forward
  double mlp = 0;        ///< of saved, what the MLP keeps; backward frees it before attention's
  bool is_layer = false; ///< can be recomputed as a whole
};
/// Parameters that segments of several kinds read, and a rank has once.
struct SharedParameter {
  Parameters parameter;
  std::vector<int> kinds;
};

/// A model's segments by kind; of each kind one is looked at.
struct Anatomy {
  std::map<int, Kind> kinds;
  std::vector<SharedParameter> shared;
};

/// The first rank of the axes that split layers.
nn::Coordinates coordinates_of(const parallelize::ParallelConfig& parallel);
/// Of a rank at `where`.
Anatomy anatomy_of(const Config& run, const nn::Coordinates& where);
/// Of the stream that has the labels, for one token of train.seq_length.
double targets_by_token(const Config& config);

/// How many segments of each kind.
using Held = std::map<int, double>;
Held held_by(const std::vector<SegmentRange>& stages, const models::ModelSpec& spec);
Parameters parameters_of(const Anatomy& anatomy, const Held& held);

/// What a pipeline rank does not train.
struct Frozen {
  Parameters parameters;
  Held idle;                    ///< segments without a backward pass
  double int8 = 0, densest = 0; ///< elements in 8 bits, and of the largest of their matrices
};
/// By pipeline rank.
std::vector<Frozen> frozen_parts(const Config& config, const parallelize::PipelinePlan& plan,
                                 const nn::Coordinates& where);

} // namespace pentatron::trainer
