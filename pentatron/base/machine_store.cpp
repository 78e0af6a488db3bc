#include "pentatron/base/machine_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/free_disk.h"

namespace pentatron {

namespace fs = std::filesystem;

// A file is blocks: one that tells whether the store is closed, then the entries. An entry is a
// header, its bytes and what fills the last block. The header is written last, so that the entry of
// a killed process is not there.
namespace {

constexpr uint64_t kStoreBlock = 65536; // a multiple of every page size

struct EntryHeader {
  uint64_t all_bytes = 0; // with this header, in blocks; 0: no entry
  uint64_t bytes = 0;
  std::array<char, 48> key{};
};
static_assert(sizeof(EntryHeader) == 64);

/// Of a file without a name; negative, with errno, if there can be none.
int create_nameless(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  std::string name = (folder / "pentatron-shared-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC); // with O_EXCL, for its owner only
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

int lock_file(int file, int operation) {
  int result = -1;
  do result = ::flock(file, operation);
  while (result != 0 && errno == EINTR);
  return result;
}

/// Disk space or memory for these bytes. Returns the error.
int reserve(int file, uint64_t at, uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      (at > limit.rlim_cur || bytes > limit.rlim_cur - at))
    return EFBIG; // beyond which a signal would end the process
  int error = EINTR;
  while (error == EINTR)
    error = ::posix_fallocate(file, static_cast<off_t>(at), static_cast<off_t>(bytes));
  return error;
}

/// Returns the error.
int write_all(int file, uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return 0;
}

/// False at the end of the file.
template <class T> bool fetch_value(int file, uint64_t at, T& value) {
  ssize_t n = -1;
  do n = ::pread(file, &value, sizeof value, static_cast<off_t>(at));
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof value);
}

struct FoundEntry {
  uint64_t at = kStoreBlock;
  EntryHeader header; // of no entry at the end
};

/// The entry of `key`, or the end.
FoundEntry look_for(int file, std::string_view key) {
  FoundEntry found;
  while (fetch_value(file, found.at, found.header) && found.header.all_bytes > 0 &&
         key != found.header.key.data())
    found.at += found.header.all_bytes;
  if (found.header.all_bytes == 0 || key != found.header.key.data()) found.header = {};
  return found;
}

} // namespace

std::shared_ptr<MachineStore> MachineStore::make(const std::vector<fs::path>& folders) {
  std::shared_ptr<MachineStore> store(new MachineStore);
  std::string reasons;
  for (const fs::path& folder : folders) {
    const int file = create_nameless(folder);
    int error = file < 0 ? errno : 0;
    if (file >= 0) {
      store->files_.push_back({folder, file});
      error = reserve(file, 0, kStoreBlock);
      if (error == 0 && (lock_file(file, LOCK_EX) != 0 || lock_file(file, LOCK_UN) != 0))
        error = errno;
      if (error == 0) continue;
      store->files_.pop_back();
      ::close(file);
    }
    reasons +=
        fmt::format("{}{}: {}", reasons.empty() ? "" : ", ", folder.string(), std::strerror(error));
  }
  if (store->files_.empty()) raise<Error>("no file can be made to share data in ({})", reasons);
  return store;
}

std::string MachineStore::address() const {
  std::string address = std::to_string(::getpid());
  for (const File& file : files_) {
    struct stat status = {};
    ::fstat(file.descriptor, &status);
    address += fmt::format("\n{} {} {} {}", file.descriptor, status.st_dev, status.st_ino,
                           file.folder.string());
  }
  return address;
}

std::shared_ptr<MachineStore> MachineStore::open(const std::string& address) {
  std::shared_ptr<MachineStore> store(new MachineStore);
  std::istringstream lines(address);
  std::string process;
  std::getline(lines, process);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int number = -1;
    uint64_t device = 0, inode = 0;
    std::string folder;
    words >> number >> device >> inode >> std::ws;
    std::getline(words, folder);
    const std::string path = fmt::format("/proc/{}/fd/{}", process, number);
    struct stat status = {};
    int error = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
    // Another process of this number may have anything there.
    if (error == 0 && (status.st_dev != device || status.st_ino != inode)) error = ENOENT;
    const int file = error == 0 ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
      raise<Error>("the shared data of process {} cannot be opened: {}", process,
                   std::strerror(error == 0 ? errno : error));
    store->files_.push_back({folder, file});
  }
  if (store->files_.empty()) raise<Error>("\"{}\" is not the address of shared data", address);
  return store;
}

MachineStore::~MachineStore() {
  for (const File& file : files_) ::close(file.descriptor);
}

MachineStore::Lock::Lock(MachineStore& store) : store_(store) {
  store_.mutex_.lock();
  if (lock_file(store_.files_[0].descriptor, LOCK_EX) == 0) return;
  const int error = errno;
  store_.mutex_.unlock();
  raise<Error>("the shared data in {} cannot be locked: {}", store_.files_[0].folder.string(),
               std::strerror(error));
}

MachineStore::Lock::~Lock() {
  lock_file(store_.files_[0].descriptor, LOCK_UN);
  store_.mutex_.unlock();
}

MachineStore::Entry MachineStore::map(const File& file, uint64_t at, uint64_t size) const {
  const size_t length = sizeof(EntryHeader) + static_cast<size_t>(size);
  void* const data =
      ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file.descriptor, static_cast<off_t>(at));
  if (data == MAP_FAILED)
    raise<Error>("the shared data in {} cannot be mapped: {}", file.folder.string(),
                 std::strerror(errno));
  return {std::shared_ptr<const void>(
              data, [length](const void* begin) { ::munmap(const_cast<void*>(begin), length); }),
          {static_cast<const std::byte*>(data) + sizeof(EntryHeader), static_cast<size_t>(size)}};
}

MachineStore::Entry MachineStore::find(std::string_view key) const {
  for (const File& file : files_)
    if (const FoundEntry found = look_for(file.descriptor, key); found.header.all_bytes > 0)
      return map(file, found.at, found.header.bytes);
  return {};
}

MachineStore::Entry MachineStore::add(std::string_view key, size_t size,
                                      const std::function<void(const Put&)>& write) {
  EntryHeader header{.all_bytes = (sizeof(EntryHeader) + size + kStoreBlock - 1) / kStoreBlock *
                                  kStoreBlock};
  PT_DCHECK(!key.empty() && key.size() < header.key.size());
  std::ranges::copy(key, header.key.begin());
  std::string reasons;
  for (const File& file : files_) {
    const uint64_t at = look_for(file.descriptor, "").at;
    // A killed process may have left half an entry there, which is not to be taken for headers.
    int error = ::ftruncate(file.descriptor, static_cast<off_t>(at)) == 0 ? 0 : errno;
    // Asked first, so that other programs do not find a full disk meanwhile.
    const std::optional<double> free = free_disk(file.folder);
    if (error == 0 && free && *free < static_cast<double>(header.all_bytes)) error = ENOSPC;
    if (error == 0) error = reserve(file.descriptor, at, header.all_bytes);
    if (error == 0) {
      uint64_t put = 0;
      write([&](std::span<const std::byte> bytes) {
        if (error == 0) error = write_all(file.descriptor, at + sizeof(EntryHeader) + put, bytes);
        put += bytes.size();
      });
      PT_DCHECK(put <= size);
      header.bytes = put;
    }
    if (error == 0) error = write_all(file.descriptor, at, std::as_bytes(std::span(&header, 1)));
    if (error == 0) return map(file, at, header.bytes);
    // Gives back what was reserved of it.
    if (::ftruncate(file.descriptor, static_cast<off_t>(at)) != 0) error = errno;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : ", ", file.folder.string(),
                           std::strerror(error));
  }
  throw Error(reasons);
}

void MachineStore::close() {
  const uint64_t closed = 1;
  write_all(files_[0].descriptor, 0, std::as_bytes(std::span(&closed, 1)));
}

bool MachineStore::closed() const {
  uint64_t closed = 0;
  return fetch_value(files_[0].descriptor, 0, closed) && closed != 0;
}

} // namespace pentatron
