#include "pentatron/cli/files/verbs.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <sstream>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/progress.h"
#include "pentatron/cli/files/exit_status.h"
#include "pentatron/cli/files/terminal.h"
#include "pentatron/cli/files/usage_error.h"

namespace pentatron::cli {

namespace {

std::vector<std::string> arguments_of_program; ///< set once, before any thread is started

int fail(const std::string& message, const std::string& remedy, int status) {
  log::set_progress(""); // of what has failed
  const std::string hint = remedy.empty() ? "" : fmt::format("  try: {}\n", remedy);
  log::print(folded_for_errors(fmt::format("error: {}\n{}", message, hint)));
  return status;
}

/// Touching what is gone of a mapped file: one sentence too. Any other bus error is a crash.
extern "C" void on_bus_error(int number, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {
    ::signal(number, SIG_DFL); // and the instruction runs again
    return;
  }
  constexpr std::string_view kText =
      "error: a file was truncated, or its disk failed, while it was in use\n  try: run the "
      "command again, without other programs that write to the same files\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(kExitFailure);
}

void tell_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

} // namespace

const char* program_version() {
  return PENTATRON_VERSION;
}

const std::vector<std::string>& command_line() {
  return arguments_of_program;
}

namespace {

int run_chosen(int argc, char** argv, std::span<const Verb> verbs) {
  arguments_of_program.assign(argv + std::min(argc, 1), argv + argc);
  tell_bus_errors();
  CLI::App program("pentatron trains large transformers.\nRun pentatron COMMAND --help for options "
                   "and an example.",
                   "pentatron");
  program.require_subcommand(1);
  program.set_version_flag("--version", "pentatron " PENTATRON_VERSION);
  Action chosen;
  for (const Verb& verb : verbs) verb.add(program, chosen);
  refuse_misread_values(program);
  try {
    program.parse(argc, argv);
    UsageError wrong = empty_item(program, arguments_of_program);
    if (wrong.message.empty()) wrong = option_as_key(program);
    if (!wrong.message.empty()) return fail(wrong.message, wrong.remedy, kExitUsage);
  } catch (const CLI::Success& help) { // --help, --version
    const UsageError wrong = unknown_command(program);
    if (!wrong.message.empty()) return fail(wrong.message, wrong.remedy, kExitUsage);
    std::ostringstream text;
    const int status = program.exit(help, text, text);
    fmt::print("{}", folded_for_terminal(text.str()));
    return status;
  } catch (const CLI::ParseError& error) {
    const UsageError wrong = usage_error(program, error, arguments_of_program);
    return fail(wrong.message, wrong.remedy, kExitUsage);
  }
  try {
    return chosen();
  } catch (const ConfigError& error) {
    return fail(error.what(), "", kExitUsage);
  } catch (const Error& error) {
    return fail(error.what(), "", kExitFailure);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", "a smaller batch or fewer workers", kExitFailure);
  } catch (const std::exception& error) {
    // Of torch or the standard library; the first line says what, the rest is their call stack.
    const std::string text = error.what();
    return fail(text.substr(0, text.find('\n')), "", kExitFailure);
  }
}

/// Whether nobody reads standard output any more: a pipe whose reader has ended, a terminal that
/// was closed.
bool reader_left() {
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

} // namespace

int run_program(int argc, char** argv, std::span<const Verb> verbs) {
  const int status = run_chosen(argc, argv, verbs);
  // What did not arrive is not a success, unless the reader had enough.
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || status != 0 || reader_left()) return status;
  return fail(fmt::format("standard output could not be written: {}",
                          errno != 0 ? std::strerror(errno) : "the disk may be full"),
              "", kExitFailure);
}

} // namespace pentatron::cli
