/// The errors that pentatron throws. A message is one sentence that names the offending value and
/// what it conflicts with, optionally followed by a line "  try: ..." with a fix; the program adds
/// the rank's coordinates.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace pentatron {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A configuration that cannot work: unknown key, value out of range, sizes that do not divide.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A tensor whose shape or dtype is not what the operation takes.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A collective that could not finish: mismatch between ranks, a peer that failed, a timeout.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Input data that cannot be read: missing, damaged or not of the promised format.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint that cannot be written, read or matched with the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted sentence: raise<ConfigError>("model.num_layers={} is not positive",
/// n).
template <class E, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// The two parts of a message: its sentence and its suggestion ("try: ..."), empty if it has none.
struct MessageParts {
  std::string_view sentence, remedy;
};
MessageParts parts_of(std::string_view message);

[[noreturn]] void dcheck_failed(const char* condition, const char* file, int line);

} // namespace pentatron

/// For conditions that do not depend on user input. Active in every build: a failed check is a bug
/// of pentatron and throws Error.
#define PT_DCHECK(condition)                                                                       \
  ((condition) ? static_cast<void>(0) : ::pentatron::dcheck_failed(#condition, __FILE__, __LINE__))
