#include "pentatron/base/atomic_file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/paths.h"

namespace pentatron {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(std::string_view verb, const fs::path& path, int error) {
  raise<Error>("{} cannot be {}: {}", path.string(), verb, std::strerror(error));
}

/// "NAME.tmp-PID-N": unique in this process, and another process has another number.
fs::path name_aside(const fs::path& target) {
  static std::atomic<uint64_t> counter{0};
  fs::path aside = target;
  if (!aside.has_filename()) aside = aside.parent_path(); // "folder/"
  aside += fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
  return aside;
}

/// Afterwards `fresh` is what `old` was and the other way round, in one step where the file system
/// can do that.
void swap_names(const fs::path& fresh, const fs::path& old) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0) return;
  const fs::path third = name_aside(old) += "-old"; // not one that was left behind
  if (::rename(old.c_str(), third.c_str()) != 0 || ::rename(fresh.c_str(), old.c_str()) != 0 ||
      ::rename(third.c_str(), fresh.c_str()) != 0)
    fail("renamed", old, errno);
}

/// A target that has appeared since the start is not replaced, where the file system can do that in
/// one step; elsewhere it is looked for just before.
void rename_to_free(const fs::path& aside, const fs::path& target) {
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) return;
  const int reason = errno;
  if (reason == EEXIST || is_there(target))
    raise<Error>("{} was created by another program in the meantime and is not overwritten\n  try: "
                 "another name, or --overwrite to replace it",
                 target.string());
  if (reason != EINVAL && reason != ENOSYS) fail("renamed", target, reason);
  if (::rename(aside.c_str(), target.c_str()) != 0) fail("renamed", target, errno);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

} // namespace

void sync_path(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) require_descriptors(errno, path.native());
  if (descriptor < 0) fail("opened", path, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems do not sync folders; they say so with EINVAL and order renames themselves.
  if (result != 0 && error != EINVAL) fail("synced to disk", path, error);
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)), aside_(name_aside(target_)) {
  std::error_code ignored;
  if (fs::is_directory(target_, ignored)) fail("written", target_, EISDIR);
  const auto create = [&] {
    return ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  };
  // A killed process, which in a container had the same number, may have left its file.
  while ((descriptor_ = create()) < 0 && errno == EEXIST) aside_ = name_aside(target_);
  if (descriptor_ < 0) require_descriptors(errno, target_.native());
  if (descriptor_ < 0) fail("created", target_, errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(aside_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write_at(size_, bytes);
  size_ += bytes.size();
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  PT_DCHECK(descriptor_ >= 0);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("written", target_, n < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit(Existing existing) {
  PT_DCHECK(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) fail("synced to disk", target_, errno);
  if (existing == Existing::kRefuse)
    rename_to_free(aside_, target_);
  else if (::rename(aside_.c_str(), target_.c_str()) != 0)
    fail("renamed", target_, errno);
  ::close(descriptor_);
  descriptor_ = -1;
  sync_path(parent_of(target_));
}

FolderLock::FolderLock(const fs::path& folder, IfTaken if_taken)
    : descriptor_(
          ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;
  int locked = -1;
  do locked = ::flock(descriptor_, if_taken == IfTaken::kWait ? LOCK_EX : LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EINTR);
  held_ = locked == 0;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace {

/// Whether `name` is what name_aside() makes of `target`.
bool is_aside_of(std::string_view name, const std::string& target) {
  const std::string before = target + ".tmp-";
  if (!name.starts_with(before)) return false;
  name.remove_prefix(before.size());
  const size_t dash = name.find('-');
  const auto digits = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dash != std::string_view::npos && digits(name.substr(0, dash)) &&
         digits(name.substr(dash + 1));
}

/// Folders aside whose process has ended.
void remove_left_behind(const fs::path& folder, const std::string& target) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (is_aside_of(it->path().filename().string(), target) &&
        fs::is_directory(it->symlink_status(error)))
      found.push_back(it->path());
  for (const fs::path& path : found)
    if (const FolderLock lock(path, FolderLock::IfTaken::kGiveUp); lock.held()) remove_tree(path);
}

} // namespace

fs::path create_aside(const fs::path& target, std::optional<FolderLock>& lock) {
  std::error_code error;
  fs::path aside;
  do { // until no other process has taken it for one that was left behind
    lock.reset();
    aside = name_aside(target);
    const fs::path folder = parent_of(aside);
    fs::create_directories(folder, error);
    if (error) fail("created", folder, error.value());
    remove_left_behind(folder, (target.has_filename() ? target : target.parent_path()).filename());
    if (::mkdir(aside.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue; // of a killed process with this number, without locks
      fail("created", aside, errno);
    }
    lock.emplace(aside);
  } while (!lock || !fs::exists(aside, error));
  return aside;
}

void write_file_atomically(const fs::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write(text);
  file.commit();
}

std::error_code remove_tree(const fs::path& path, const std::function<void()>& progress) {
  std::error_code first, error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    std::vector<fs::path> inside; // before anything goes, which would confuse the iterator
    for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator();
         it.increment(error))
      inside.push_back(it->path());
    first = error;
    for (const fs::path& child : inside) {
      error = remove_tree(child, progress);
      if (error && !first) first = error;
    }
  }
  fs::remove(path, error);
  if (error && !first) first = error;
  if (progress) progress();
  return first;
}

AtomicDirectory::AtomicDirectory(fs::path target, std::function<void()> progress)
    : target_(std::move(target)), aside_(create_aside(target_, lock_)),
      progress_(std::move(progress)) {
  if (!target_.has_filename()) target_ = target_.parent_path();
}

AtomicDirectory::~AtomicDirectory() {
  if (!aside_.empty()) remove_tree(aside_, progress_);
}

void AtomicDirectory::commit(Existing existing) {
  PT_DCHECK(!aside_.empty());
  const bool exists = is_there(target_);
  if (exists && existing == Existing::kRefuse)
    raise<Error>("{} exists already and is not overwritten", target_.string());
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(aside_, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it->is_regular_file(error) || it->is_directory(error)) sync_path(it->path());
    if (progress_) progress_();
  }
  if (error) fail("read", aside_, error.value());
  sync_path(aside_);
  if (exists) {
    swap_names(aside_, target_);
    sync_path(parent_of(target_));
    remove_tree(aside_, progress_);
  } else {
    rename_to_free(aside_, target_);
  }
  aside_.clear();
  lock_.reset();
  sync_path(parent_of(target_));
}

} // namespace pentatron
