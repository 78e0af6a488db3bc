#include "pentatron/base/run_lock.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/host_name.h"
#include "pentatron/base/text.h"

namespace pentatron {

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
RunLock::RunLock(RunLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), made_(std::move(other.made_)) {}
RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(made_, other.made_);
  return *this;
}

void RunLock::remove() noexcept {
  if (!held()) return;
  if (!made_.empty()) ::unlink(made_.c_str()); // before it is free for others
  ::close(std::exchange(descriptor_, -1));
}

namespace {

/// Whether the path still leads to the open file: its last holder may have removed it.
bool is_at(int descriptor, const std::filesystem::path& path) {
  struct stat open = {}, there = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open.st_ino == there.st_ino && open.st_dev == there.st_dev;
}

} // namespace

std::optional<std::string> RunLock::take(const std::filesystem::path& folder, bool create) {
  constexpr int kTries = 10; // where file numbers change, a file never is where it was
  return take(folder, create, kTries);
}

std::optional<std::string> RunLock::take(const std::filesystem::path& folder, bool create,
                                         int tries) {
  if (held()) {
    if (create) sign();
    return std::nullopt;
  }
  const std::filesystem::path file = folder / "run.lock";
  const bool makes = create && ::access(file.c_str(), F_OK) != 0;
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) && !create)
    return std::nullopt;
  if (descriptor < 0) require_descriptors(errno, file.native());
  if (descriptor < 0)
    raise<ConfigError>("{0} cannot be opened: {1}\n  try: another folder, or remove {0}",
                       file.string(), std::strerror(errno));
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const bool taken = ::fcntl(descriptor, F_OFD_SETLK, &whole) == 0;
  const int reason = taken ? 0 : errno;
  if (reason == EAGAIN || reason == EACCES) {
    std::array<char, 256> text{};
    const ssize_t size = ::pread(descriptor, text.data(), text.size() - 1, 0);
    ::close(descriptor);
    const std::string owner =
        excerpt(trim({text.data(), size > 0 ? static_cast<size_t>(size) : 0}), text.size());
    return owner.empty() ? "another process" : owner;
  }
  if (tries > 1 && !is_at(descriptor, file)) {
    ::close(descriptor);
    return take(folder, create, tries - 1);
  }
  if (makes) made_ = std::filesystem::absolute(file);
  descriptor_ = descriptor; // without a lock too, where the file system knows none
  if (create) sign();
  return std::nullopt;
}

void RunLock::sign() const {
  const std::string text =
      fmt::format("process {} on {} since {}\n", ::getpid(), host_name(), utc_timestamp());
  // Only for messages: a lock whose owner is unknown is a lock.
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0)
    return;
}

} // namespace pentatron
