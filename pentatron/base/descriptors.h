/// Tells when no more files or connections can be opened.
#pragma once

#include <string_view>

#include "pentatron/base/error.h"

namespace pentatron {

/// File descriptors, or memory for one, have run out. Nothing is wrong with what was to be opened,
/// so this is neither a DataError nor a CheckpointError: code that judges a file by what reading it
/// throws catches these two, and this one passes.
class OutOfDescriptors : public Error {
 public:
  using Error::Error;
};

/// Throws OutOfDescriptors, whose message contains the limit, if `error` is an errno that means
/// that. `what` was to be opened.
void require_descriptors(int error, std::string_view what = "another file or connection");

} // namespace pentatron
