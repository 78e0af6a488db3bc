/// Keeps a test's log short.
#pragma once

#include "pentatron/base/log.h"

namespace pentatron::test {

/// Only warnings while it lives: every rank would tell its place.
struct QuietLog {
  QuietLog() { log::set_level(log::Level::kWarning); }
  ~QuietLog() { log::set_level(before); }
  QuietLog(const QuietLog&) = delete;
  log::Level before = log::level();
};

} // namespace pentatron::test
