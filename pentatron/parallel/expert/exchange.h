/// Rows of tokens between the ranks of a group, started and awaited apart, so that other work fits
/// between the two. In backward the gradients go the other way, likewise started where the rows
/// arrived and awaited where they left, with the derivatives of that other work between the two.
///
/// | exchange | forward                                            | backward |
/// |----------|----------------------------------------------------|----------|
/// | rows     | uneven all-to-all                                  | rows     |
/// | gather   | every rank's rows, filled up to `each` with zeros  | scatter  |
/// | scatter  | sum over ranks, and of it this rank's rows         | gather   |
///
/// On a group of one, each is the identity.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/comm/work.h"
#include "pentatron/nn/turns.h"

namespace pentatron::parallel {

/// Waits for communication of `group`. One of two passes that take turns hands over before; `turns`
/// may be null.
void wait_in_turn(comm::Work& work, nn::Turns* turns, const comm::Group& group);

class Exchange {
 public:
  /// `turns` may be null.
  static Exchange rows(std::vector<int64_t> send, std::vector<int64_t> receive, comm::Group group,
                       std::shared_ptr<nn::Turns> turns);
  /// From `own` [own, f] to [ranks each, f].
  static Exchange gather(int64_t own, int64_t each, comm::Group group,
                         std::shared_ptr<nn::Turns> turns);
  /// The one that goes back.
  Exchange back() const;

  /// Where a pass that takes turns hands over before it waits. Of two exchanges that set off
  /// together only one needs to.
  enum class HandOver : uint8_t { kBothWays, kForward, kBackward };

  /// What is on its way.
  struct Moving;
  struct Started {
    at::Tensor ticket; ///< without elements: the order of start and finish in backward
    std::shared_ptr<Moving> moving;
    HandOver hand_over = HandOver::kBothWays;
  };
  /// `x` [rows, f] must not change before finish().
  Started start(const at::Tensor& x, HandOver hand_over = HandOver::kBothWays) const;
  at::Tensor finish(const Started& started) const;
  at::Tensor operator()(const at::Tensor& x) const { return finish(start(x)); }

 private:
  enum class Kind : uint8_t { kRows, kGather, kScatter };

  void begin(Moving& moving, const at::Tensor& x) const;
  at::Tensor end(Moving& moving, bool hands_over) const;

  Kind kind_ = Kind::kRows;
  std::vector<int64_t> send_, receive_; ///< by rank of the group
  int64_t own_ = 0, each_ = 0;
  comm::Group group_;
  std::shared_ptr<nn::Turns> turns_;
};

} // namespace pentatron::parallel
