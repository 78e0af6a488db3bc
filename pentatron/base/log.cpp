#include "pentatron/base/log.h"

#include <atomic>
#include <mutex>

#include <unistd.h>

namespace pentatron::log {

namespace {

constexpr std::string_view kClearLine = "\r\033[K";

struct Output {
  std::mutex mutex;
  std::FILE* file = stderr;
  bool terminal = ::isatty(STDERR_FILENO) == 1;
  std::string progress;
};

Output& output() {
  static Output* const instance = new Output; // outlives every thread that may still write at exit
  return *instance;
}

std::atomic<Level> threshold{Level::kInfo};
thread_local std::string thread_prefix;
thread_local std::FILE* thread_file = nullptr;
thread_local bool thread_console = true;

std::string harmless(std::string_view message, bool one_line) {
  std::string out(message);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\t' || (c == '\n' && !one_line)) continue;
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return out;
}

void emit(Output& out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out.file);
  std::fflush(out.file);
}

} // namespace

void set_level(Level level) {
  threshold = level;
}

Level level() {
  return threshold;
}

void set_thread_prefix(std::string prefix) {
  thread_prefix = std::move(prefix);
}

void set_thread_output(std::FILE* file, bool console) {
  thread_file = file;
  thread_console = console;
}

void set_output(std::FILE* file, bool terminal) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  out.file = file;
  out.terminal = terminal;
  out.progress.clear();
}

bool is_terminal() {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  return out.terminal;
}

void set_progress(std::string_view line) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (!out.terminal) return;
  out.progress = harmless(line, /*one_line=*/true);
  emit(out, std::string(kClearLine) + out.progress);
}

void write(Level level, std::string_view message, Audience audience) {
  if (level < threshold.load()) return;
  std::string line;
  if (!thread_prefix.empty()) line += thread_prefix + ": ";
  if (level == Level::kDebug) line += "debug: ";
  if (level == Level::kWarning) line += "warning: ";
  if (level == Level::kError) line += "error: ";
  line += harmless(message, /*one_line=*/false) + '\n';
  if (thread_file != nullptr) {
    std::fwrite(line.data(), 1, line.size(), thread_file);
    std::fflush(thread_file);
  }
  if (!thread_console && (level < Level::kWarning || audience == Audience::kOneRank)) return;
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (!out.progress.empty()) line = std::string(kClearLine) + line + out.progress;
  emit(out, line);
}

} // namespace pentatron::log
