/// Actions as text.
///
/// An action begins with its stage: 2F0 is stage 2's forward of microbatch 0; B, I and W likewise;
/// 2F3+5B1 is an overlapped pair. A lowered schedule also has:
///   2sendF0>3    stage 2's activation of microbatch 0, to rank 3 (sendB: its input's gradient)
///   3recvF0<2    stage 3's activation of microbatch 0, from rank 2 (recvB: its output's gradient)
///   2free0       stage 2's output of microbatch 0 is not needed any more
#pragma once

#include <string>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

std::string to_text(const Action& action);

} // namespace pentatron::pipeline
