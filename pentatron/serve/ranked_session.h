/// A BatchSession on all ranks of a model: rank 0 decides, the other ranks repeat its calls.
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/generate/batch_session.h"

namespace pentatron::serve {

class RankedSession {
 public:
  RankedSession(parallelize::ModelView model, const generate::BatchSession::Options& options,
                comm::Group world);

  /// On rank 0: like BatchSession's functions; the calls are sent to the other ranks with the next
  /// pass.
  int64_t open(int64_t text, const std::vector<int64_t>& tokens, int64_t variant, bool take_over);
  void close(int64_t text);
  /// Logits [rows, V] in fp32 of the rows that are wanted; undefined if none are.
  at::Tensor read(const std::vector<generate::Session::Input>& inputs);
  /// While there is nothing to read, so that ranks which wait do not give up.
  void tell_idle();
  /// The other ranks return from follow().
  void stop();

  /// Of the other ranks: repeats what rank 0 does until it stops.
  void follow();

  const generate::BatchSession& session() const { return session_; }

 private:
  void tell();
  at::Tensor read_here(const std::vector<generate::Session::Input>& inputs);
  /// Repeats one call of rank 0; returns false for stop().
  bool repeat(const int64_t*& next);

  comm::Group world_;
  generate::BatchSession session_;
  std::vector<int64_t> told_; ///< calls since the last pass, as numbers
};

} // namespace pentatron::serve
