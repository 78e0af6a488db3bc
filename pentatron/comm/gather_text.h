/// Short texts of all ranks: names, reports, events.
#pragma once

#include <string>
#include <vector>

#include "pentatron/comm/group.h"

namespace pentatron::comm {

/// Every rank's text, in rank order. Collectives: two all-gathers.
std::vector<std::string> gather_text(const std::string& text, const Group& group);

/// The root's text on every rank; it may be long. Collectives: two broadcasts.
std::string broadcast_text(const std::string& text, int root, const Group& group);

} // namespace pentatron::comm
