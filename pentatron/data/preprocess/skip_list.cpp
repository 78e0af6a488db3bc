#include "pentatron/data/preprocess/skip_list.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/descriptors.h"

namespace pentatron::data {

namespace fs = std::filesystem;

SkipList::SkipList(fs::path target, fs::path folder)
    : target_(std::move(target)), growing_(std::move(folder) / "skipped.jsonl") {}

SkipList::~SkipList() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void SkipList::open(int64_t bytes) {
  descriptor_ = ::open(growing_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) require_descriptors(errno, growing_.native());
  if (descriptor_ < 0 || ::ftruncate(descriptor_, bytes) != 0)
    raise<DataError>("{} cannot be written: {}", growing_.string(), std::strerror(errno));
  bytes_ = bytes;
}

void SkipList::add(const std::vector<SkippedInput>& skips) {
  std::string text;
  for (const SkippedInput& input : skips) text += input.to_json() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(descriptor_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      raise<DataError>("{} cannot be written: {}", growing_.string(), std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  bytes_ += static_cast<int64_t>(text.size());
}

void SkipList::sync() {
  if (descriptor_ >= 0 && ::fdatasync(descriptor_) != 0)
    raise<DataError>("{} cannot be written: {}", growing_.string(), std::strerror(errno));
}

void SkipList::commit(bool empty) {
  std::error_code error;
  if (empty) {
    fs::remove(target_, error);
    return;
  }
  if (!fs::exists(growing_, error)) return; // done by a call that was killed after it
  fs::rename(growing_, target_, error);
  if (error) raise<DataError>("{} cannot be written: {}", target_.string(), error.message());
  sync_path(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

} // namespace pentatron::data
