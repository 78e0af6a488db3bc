/// Two passes of one rank that take turns: one goes on while what the other has asked other ranks
/// for is on its way.
///
/// Only one of them runs at a time. It hands over where it would wait, at places that do not depend
/// on time; so ranks that run the same two passes start their communication in the same order.
/// Results have the bits that they have when one pass follows the other, unless both add to one
/// tensor.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace pentatron::nn {

class Turns {
 public:
  /// `device`: that the passes compute on.
  explicit Turns(c10::Device device = c10::kCPU);
  ~Turns();
  Turns(const Turns&) = delete;

  /// Runs `first` on a thread of its own, which belongs to the rank as the caller's does, and
  /// `second` on the caller's. `first` begins; `second` begins when that hands over, or has ended.
  /// Throws what the first failing of them throws: the other does not begin, or ends where it hands
  /// over next.
  void run(const std::function<void()>& first, const std::function<void()>& second);
  /// The pass that runs hands over; returns when it is its turn again. Outside of run(), and when
  /// the other pass has ended, does nothing.
  void pass();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace pentatron::nn
