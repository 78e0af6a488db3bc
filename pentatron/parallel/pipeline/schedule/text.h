/// The text form of schedules, for reading, editing and comparing.
///
///   schedule 1f1b
///   ranks 2
///   stages 2
///   microbatches 2
///   rank_of_stage 0 1
///   rank 0: 0F0 0F1 0B0 0B1
///   rank 1: 1F0 1B0 1F1 1B1
///
/// An action begins with its stage: 2F0 is stage 2's forward of microbatch 0; B, I and W likewise;
/// 2F3+5B1 is an overlapped pair. A lowered schedule has the line "lowered" after microbatches,
/// and:
///   2sendF0>3    stage 2's activation of microbatch 0, to rank 3 (sendB: its input's gradient)
///   3recvF0<2    stage 3's activation of microbatch 0, from rank 2 (recvB: its output's gradient)
///   2free0       stage 2's output of microbatch 0 is not needed any more
/// '#' begins a comment. A rank's actions may continue on lines that begin with a space.
#pragma once

#include <string>
#include <string_view>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// One action, as in the text form.
std::string to_text(const Action& action);

/// The whole schedule. parse_schedule() of it is equal to `schedule`, if that has numbers in range.
std::string to_text(const Schedule& schedule);

/// Reads the text form. Numbers are checked against the sizes, and sizes against the bytes that are
/// there; what the schedule does is for check().
/// Throws DataError that names `source` and the line.
Schedule parse_schedule(std::string_view text, std::string_view source = "schedule");

} // namespace pentatron::pipeline
