/// Short texts of all ranks: names, reports, events, errors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/comm/group.h"

namespace pentatron::comm {

/// Every rank's text, in rank order. Collectives: two all-gathers.
std::vector<std::string> gather_text(const std::string& text, const Group& group);

/// As gather_text, on the ranks `to` only (the same list everywhere); nothing on the others, which
/// do not hold it either. Collectives: an all-gather of lengths and an all-to-all.
std::vector<std::string> gather_text_to(const std::vector<int>& to, const std::string& text,
                                        const Group& group);

/// Runs `work` on the ranks with `here` true. Returns the first error of any rank (an Error's
/// text), the same on all of them; empty: none. Collective: one gather_text.
std::string first_error(const Group& group, bool here, const std::function<void()>& work);

/// As first_error, which every rank throws as E.
template <class E> void together(const Group& group, bool here, const std::function<void()>& work) {
  if (const std::string error = first_error(group, here, work); !error.empty()) throw E(error);
}

/// The root's text on every rank; it may be long. Collectives: two broadcasts.
std::string broadcast_text(const std::string& text, int root, const Group& group);

} // namespace pentatron::comm
