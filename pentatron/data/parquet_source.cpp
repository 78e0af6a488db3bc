#include "pentatron/data/parquet_source.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::data {

namespace fs = std::filesystem;

namespace {

constexpr const char* kReader = "pentatron-parquet";
constexpr const char* kMoreColumns = "--more"; // as in parquet_main.cpp
constexpr size_t kMessageBytes = 4096;
constexpr int kInvalidDataCode = 1; // as in parquet_main.cpp
constexpr int kNotLoadedCode = 127; // the dynamic linker's, for a library that is not there

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      require_descriptors(errno);
      raise<Error>("cannot create a pipe to {}: {}", kReader, std::strerror(errno));
    }
    from = ends[0];
    to = ends[1];
  }
  ~Pipe() {
    close_end(from);
    close_end(to);
  }
  Pipe(const Pipe&) = delete;
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int from = -1, to = -1;
};

fs::path reader_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return self.parent_path() / kReader;
}

/// The status with which a program ended.
int wait_for_reader(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

class ParquetSource final : public ByteSource {
 public:
  ParquetSource(const fs::path& file, const std::vector<std::string>& columns,
                const std::vector<std::string>& more, const fs::path& program)
      : name_(file.string()) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    if (!error) file_bytes_ = static_cast<int64_t>(size);
    if (!fs::exists(program, error))
      raise<ConfigError>(
          "{} is a Parquet file, but this build of pentatron has no {}, which reads them\n  try: "
          "scripts/parquet.sh, which installs Apache Arrow and builds it",
          name_, kReader);
    // Absolute: a name that begins with a dash is no option.
    std::vector<std::string> words = {program.string(), fs::absolute(file).string()};
    words.insert(words.end(), columns.begin(), columns.end());
    if (!more.empty()) words.emplace_back(kMoreColumns);
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, out_.to, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errors_.to, STDERR_FILENO);
    // A group of its own: Ctrl-C is this program's to answer, and a closed pipe ends the reader.
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int failure =
        ::posix_spawn(&child_, words[0].c_str(), &actions, &attributes, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (failure != 0) raise<Error>("{} cannot be started: {}", words[0], std::strerror(failure));
    Pipe::close_end(out_.to);
    Pipe::close_end(errors_.to);
  }

  ~ParquetSource() override {
    Pipe::close_end(out_.from);
    Pipe::close_end(errors_.from);
    if (child_ > 0) wait_for_reader(child_);
  }

  size_t read(char* buffer, size_t capacity) override {
    size_t filled = 0;
    while (filled < capacity && child_ > 0) {
      const ssize_t n = ::read(out_.from, buffer + filled, capacity - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) raise<Error>("{}: {} cannot be read: {}", name_, kReader, std::strerror(errno));
      if (n == 0) {
        finish();
        break;
      }
      filled += static_cast<size_t>(n);
    }
    if (filled == 0 && !damage_.empty()) throw DataError(damage_);
    if (filled == 0 && !failure_.empty()) throw Error(failure_);
    return filled;
  }

  /// The reader does not tell how far it is.
  int64_t consumed_bytes() const override { return child_ > 0 ? 0 : file_bytes_; }

 private:
  /// Takes the reader's status and what it says.
  void finish() {
    std::string message(kMessageBytes, '\0');
    size_t length = 0;
    while (length < message.size()) {
      const ssize_t n = ::read(errors_.from, message.data() + length, message.size() - length);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      length += static_cast<size_t>(n);
    }
    message.resize(length);
    const int status = wait_for_reader(child_);
    child_ = -1;
    if (WIFSIGNALED(status)) {
      failure_ = fmt::format("{} cannot be read: {} was ended by signal {}", name_, kReader,
                             WTERMSIG(status));
      return;
    }
    const int code = WEXITSTATUS(status);
    if (code == 0) return;
    if (code == kInvalidDataCode) {
      damage_ = fmt::format("{} is not a valid Parquet file: {}", name_, trim(message));
      return;
    }
    failure_ = fmt::format("{} cannot be read: {} ended with code {}: {}", name_, kReader, code,
                           trim(message));
    if (code == kNotLoadedCode) failure_ += "\n  try: scripts/parquet.sh, which builds it again";
  }

  std::string name_;
  Pipe out_, errors_;
  pid_t child_ = -1;
  int64_t file_bytes_ = 0;
  // Thrown once what came before is handed out: the file is bad, or something else is.
  std::string damage_, failure_;
};

} // namespace

std::unique_ptr<ByteSource> open_parquet(const fs::path& file,
                                         const std::vector<std::string>& columns,
                                         const std::vector<std::string>& more,
                                         const fs::path& reader) {
  return std::make_unique<ParquetSource>(file, columns, more,
                                         reader.empty() ? reader_program() : reader);
}

} // namespace pentatron::data
