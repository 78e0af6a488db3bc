/// Schedules as text, which tests change by hand:
///
///   schedule 1f1b
///   ranks 2
///   stages 2
///   microbatches 2
///   rank_of_stage 0 1
///   rank 0: 0F0 0F1 0B0 0B1
///   rank 1: 1F0 1B0 1F1 1B1
///
/// A lowered schedule has the line "lowered" after microbatches.
#pragma once

#include <cctype>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/schedule.h"
#include "pentatron/parallel/pipeline/schedule/text.h"

namespace pentatron::pipeline::test {

inline std::string to_text(const Schedule& s) {
  std::string out =
      fmt::format("schedule {}\nranks {}\nstages {}\nmicrobatches {}\n{}rank_of_stage {}\n", s.name,
                  s.num_ranks, s.num_stages, s.num_microbatches, s.lowered ? "lowered\n" : "",
                  fmt::join(s.rank_of_stage, " "));
  for (size_t rank = 0; rank < s.actions.size(); ++rank) {
    out += fmt::format("rank {}:", rank);
    for (const Action& action : s.actions[rank]) out += ' ' + pipeline::to_text(action);
    out += '\n';
  }
  return out;
}

/// The action of pipeline::to_text().
inline Action parse_action(const std::string& text) {
  std::istringstream in(text);
  const auto fail = [&] { raise<Error>("\"{}\" is not an action", text); };
  Action action;
  std::string word;
  in >> action.stage;
  while (std::isalpha(in.peek()) != 0) word += static_cast<char>(in.get());
  in >> action.microbatch;
  const int mark = in.get();
  if (word == "F" && mark == '+') {
    action.kind = ActionKind::kOverlap;
    in >> action.second_stage;
    if (in.get() != 'B') fail();
    in >> action.second_microbatch;
  } else if (word.starts_with("send") || word.starts_with("recv")) {
    action.kind = word.starts_with("send") ? ActionKind::kSend : ActionKind::kRecv;
    action.payload = word.ends_with('F') ? Payload::kActivation : Payload::kGradient;
    in >> action.peer;
  } else {
    action.kind = word == "F"   ? ActionKind::kForward
                  : word == "B" ? ActionKind::kBackward
                  : word == "I" ? ActionKind::kBackwardInput
                  : word == "W" ? ActionKind::kBackwardWeight
                                : ActionKind::kFree;
  }
  if (pipeline::to_text(action) != text) fail();
  return action;
}

/// Throws Error for what to_text() does not write.
inline Schedule parse_schedule(const std::string& text) {
  std::istringstream in(text);
  Schedule s;
  std::string word;
  in >> word >> s.name >> word >> s.num_ranks >> word >> s.num_stages >> word >>
      s.num_microbatches >> word;
  s.lowered = word == "lowered";
  if (s.lowered) in >> word;
  s.rank_of_stage.resize(static_cast<size_t>(s.num_stages));
  for (int& rank : s.rank_of_stage) in >> rank;
  while (in >> word) {
    if (word != "rank") {
      s.actions.at(s.actions.size() - 1).push_back(parse_action(word));
      continue;
    }
    in >> word; // "0:"
    s.actions.emplace_back();
  }
  if (to_text(s) != text) raise<Error>("is not the text of a schedule:\n{}", text);
  return s;
}

} // namespace pentatron::pipeline::test
