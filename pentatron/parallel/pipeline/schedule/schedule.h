/// A pipeline schedule as data: what every rank does, in order. No tensors, no communication.
///
/// A model is cut into `num_stages` stages; `rank_of_stage` maps stages to ranks (in a V shape
/// stage s and stage 2p-1-s share a rank). A step runs `num_microbatches` microbatches through all
/// stages, forward and backward. A generator writes only what is computed; lower() adds the
/// messages and the ends of lifetimes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::pipeline {

enum class ActionKind : unsigned char {
  // What a generator writes.
  kForward,        ///< F
  kBackward,       ///< B: input and weight gradients
  kBackwardInput,  ///< I: input gradient; the weight gradients are deferred
  kBackwardWeight, ///< W: the deferred weight gradients
  kOverlap,        ///< F of one (stage, microbatch) run together with B of another
  // What lower() inserts.
  kSend, ///< hands a result to the neighbouring stage's rank; asynchronous and buffered
  kRecv, ///< posts a receive; the pass that needs the data waits for it
  kFree, ///< the output of (stage, microbatch)'s F has been sent or consumed and may go
};
inline constexpr int kNumActionKinds = 8;

/// What a message carries.
enum class Payload : unsigned char {
  kActivation, ///< from stage s to s + 1
  kGradient,   ///< from stage s to s - 1
};

/// One step of a rank. Fields that a kind does not use keep their default, so that equality means
/// the same step.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0; ///< always a stage of the acting rank; for kOverlap that of the F
  int microbatch = -1;
  int second_stage = -1;                  ///< kOverlap: the stage of the B
  int second_microbatch = -1;             ///< kOverlap: the microbatch of the B
  int peer = -1;                          ///< kSend, kRecv: the other rank
  Payload payload = Payload::kActivation; ///< kSend, kRecv

  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int num_ranks = 0;
  int num_stages = 0;
  int num_microbatches = 0;
  bool lowered = false; ///< whether lower() has added its actions
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> actions; ///< by rank

  bool operator==(const Schedule&) const = default;

  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == num_stages - 1; }
  /// The stages that `rank` holds, ascending.
  std::vector<int> stages_of(int rank) const;
};

/// One computation on one (stage, microbatch): F, B, I or W.
struct Pass {
  ActionKind kind;
  int stage;
  int microbatch;
};

/// The passes of an action: two for kOverlap (the F first), none for what lower() inserts.
class Passes {
 public:
  explicit Passes(const Action& action);
  const Pass* begin() const { return passes_.data(); }
  const Pass* end() const { return passes_.data() + size_; }
  int size() const { return size_; }

 private:
  std::array<Pass, 2> passes_{};
  int size_ = 0;
};

inline bool is_compute(ActionKind kind) {
  return kind <= ActionKind::kOverlap;
}
/// Whether a pass makes the gradient of its stage's input: B or I.
inline bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
/// Whether a pass makes the gradients of its stage's parameters: B or W.
inline bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// Whether weight gradients have passes of their own.
bool defers_weight_gradients(const Schedule& schedule);

/// Makers of the actions of a generator.
Action forward(int stage, int microbatch);
Action backward(int stage, int microbatch);
Action backward_input(int stage, int microbatch);
Action backward_weight(int stage, int microbatch);
Action overlap(int forward_stage, int forward_microbatch, int backward_stage,
               int backward_microbatch);

/// The largest schedule that make_schedule() makes; protects from sizes that are typing errors.
inline constexpr int64_t kMaxRanks = 1 << 16;
inline constexpr int64_t kMaxMicrobatches = 1 << 20;
inline constexpr int64_t kMaxActions = int64_t{1} << 26;

/// gpipe, 1f1b, interleaved, zb_h1, zb_h2, zb_v, dualpipe_v.
const std::vector<std::string>& schedule_names();

/// How many stages a rank holds under `name`: 1, for the V shapes 2, for interleaved the
/// `virtual_stages` that the user asks for (0 or 1: the least that works, 2).
/// Throws ConfigError if the schedule does not exist or cannot have that many.
int stages_per_rank(std::string_view name, int virtual_stages = 0);

/// The schedule `name` for any num_ranks >= 1 and num_microbatches >= 1, also fewer microbatches
/// than ranks and numbers that do not divide. `virtual_stages` as for stages_per_rank().
/// Throws ConfigError for unknown names and sizes out of range.
Schedule make_schedule(std::string_view name, int num_ranks, int virtual_stages,
                       int num_microbatches);

} // namespace pentatron::pipeline
