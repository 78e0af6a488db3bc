/// The first step of every operation: each member tells each other what it calls, together with its
/// data if that is small.
///
/// So members that disagree find out before any data flows, and all of them do. A small operation
/// is complete after this step.
#pragma once

#include "pentatron/comm/backend/messages/operation.h"

#include <span>

namespace pentatron::comm::messages {

struct Greeting {
  std::vector<int64_t>
      words; ///< at most kMaxWordsPerMember for each member; as many on all members
  std::vector<std::span<const std::byte>> payloads; ///< none, one for all members, or one for each

  static constexpr int64_t kMaxWordsPerMember = 3;
};

/// What the members said, by member, this one included. Lies in the operation's buffers; this
/// member's payload where it was.
struct Meeting {
  std::vector<std::span<const int64_t>> words;
  std::vector<const std::byte*> payloads;
};

/// Throws CommError on all members if the calls differ, naming two that do.
Protocol meet(Operation& operation, Greeting greeting, Meeting& meeting);

/// Each member's text, by member; cut after 1000 characters.
Protocol exchange_texts(Operation& operation, std::string text, std::vector<std::string>& texts);

} // namespace pentatron::comm::messages
