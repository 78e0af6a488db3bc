#include "pentatron/parallel/pipeline/schedule/text.h"

#include <string_view>

#include <fmt/format.h>

namespace pentatron::pipeline {

namespace {

std::string_view word(ActionKind kind) {
  switch (kind) {
  case ActionKind::kForward:
    return "F";
  case ActionKind::kBackward:
    return "B";
  case ActionKind::kBackwardInput:
    return "I";
  case ActionKind::kBackwardWeight:
    return "W";
  case ActionKind::kSend:
    return "send";
  case ActionKind::kRecv:
    return "recv";
  case ActionKind::kFree:
    return "free";
  case ActionKind::kOverlap:
    break; // two words
  }
  return "?";
}

} // namespace

std::string to_text(const Action& action) {
  const std::string head = fmt::format("{}{}", action.stage, word(action.kind));
  switch (action.kind) {
  case ActionKind::kOverlap:
    return fmt::format("{}F{}+{}B{}", action.stage, action.microbatch, action.second_stage,
                       action.second_microbatch);
  case ActionKind::kSend:
  case ActionKind::kRecv:
    return fmt::format("{}{}{}{}{}", head, action.payload == Payload::kActivation ? 'F' : 'B',
                       action.microbatch, action.kind == ActionKind::kSend ? '>' : '<',
                       action.peer);
  default:
    return fmt::format("{}{}", head, action.microbatch);
  }
}

} // namespace pentatron::pipeline
