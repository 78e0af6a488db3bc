/// Messages for people, on standard error: one line each, complete even if several threads write.
///
/// A thread that is a rank of several sets its prefix once: "rank 3: message". A progress line, if
/// one is shown, stays the last line of the terminal: messages appear above it. On a terminal they
/// are folded where it ends, in files and pipes they never are. Control characters in a message
/// become '?', so text from other sources cannot control the terminal.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace pentatron::log {

enum class Level : uint8_t { kInfo, kWarning, kError, kSilent };

/// Messages below `level` are not written. At the start: kInfo.
void set_level(Level level);
Level level();

/// What stands before the messages of this thread, "rank 3"; empty for none.
void set_thread_prefix(std::string prefix);

/// Messages of this thread also go to `file` (null: none; not owned). With `console` false those
/// below kWarning go there only: one console for many ranks.
void set_thread_output(std::FILE* file, bool console);

/// What a thread has set, for another thread of the same rank.
struct ThreadSettings {
  std::string prefix;
  std::FILE* file = nullptr;
  bool console = true;
};
ThreadSettings thread_settings();
void set_thread_settings(const ThreadSettings& settings);

/// Where messages go (standard error at the start) and whether that is a terminal. The file is not
/// owned.
void set_output(std::FILE* file, bool terminal);
/// Whether the output is a terminal.
bool is_terminal();

/// Shows `line` as the last line of the terminal, replacing the one before; an empty line removes
/// it. Does nothing when the output is a file.
void set_progress(std::string_view line);

enum class Audience : uint8_t {
  kEveryRank, ///< what this rank has to say
  kOneRank    ///< what all ranks say alike: on the console only of the rank that has it
};
/// Writes one message, if `level` is not below the threshold.
void write(Level level, std::string_view message, Audience audience = Audience::kEveryRank);

template <class... Args> void info(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::kInfo) {
    write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args> void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
/// A warning that every rank gives alike: each into its file, one on the console.
template <class... Args> void shared_warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...), Audience::kOneRank);
}
template <class... Args> void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

} // namespace pentatron::log
