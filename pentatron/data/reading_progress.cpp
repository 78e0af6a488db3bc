#include "pentatron/data/reading_progress.h"

#include <utility>

namespace pentatron::data {

namespace {

int64_t size_of(std::span<const InputFile> files) {
  int64_t bytes = 0;
  for (const InputFile& file : files) bytes += file.size_bytes;
  return bytes;
}

} // namespace

ReadingProgress::ReadingProgress(std::string label, std::span<const InputFile> files,
                                 Options options)
    : options_(std::move(options)), line_(std::move(label), size_of(files),
                                          {.unit = Progress::Unit::kBytes, .draw = options_.draw}) {
}

void ReadingProgress::add(int64_t disk_bytes) {
  const int64_t done = done_ += disk_bytes;
  line_.update(done);
  if (options_.working) options_.working();
}

} // namespace pentatron::data
