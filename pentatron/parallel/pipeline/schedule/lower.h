/// Adds to a schedule what follows from it: messages and the ends of lifetimes.
#pragma once

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

struct LowerOptions {
  /// A receive is posted so many computing actions before the one that needs it. 0: right before.
  int prefetch = 1;
};

/// The lowered form of a valid schedule (lowered = true). Around each computing action, in order:
///
///   kRecv  posted `prefetch` computing actions ahead; earlier where the sender's order asks
///   (the computing action)
///   kSend  an activation for stage+1 or a gradient for stage-1, right after its pass
///   kFree  (stage, microbatch)'s output: after its kSend, after stage+1's F if that runs on the
///          same rank, or after the F itself in the last stage
///
/// Parameters and gradients are not part of a schedule: the ParamStore gathers, releases and
/// reduces them by segment and bucket, which is finer than by stage.
///
/// Messages from one rank to another match first in, first out: the receives of an ordered pair
/// of ranks stand in the order of the sends. Neighbouring stages of one rank exchange no message.
/// Throws ConfigError if the schedule is already lowered, or a pass of it has no counterpart (an
/// incomplete schedule; check() names what is missing).
Schedule lower(const Schedule& schedule, const LowerOptions& options = {});

} // namespace pentatron::pipeline
