#include "pentatron/data/byte_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

constexpr size_t kInputBytes = size_t{1} << 18;

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(const std::filesystem::path& path) : name_(path.string()) {
    fd_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) require_descriptors(errno, name_);
    if (fd_ < 0) raise<DataError>("{} cannot be opened: {}", name_, std::strerror(errno));
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainSource() override { ::close(fd_); }
  PlainSource(const PlainSource&) = delete;
  PlainSource& operator=(const PlainSource&) = delete;

  size_t read(char* buffer, size_t capacity) override {
    size_t filled = 0;
    while (filled < capacity) {
      const ssize_t n = ::read(fd_, buffer + filled, capacity - filled);
      if (n == 0) break;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) raise<DataError>("{} cannot be read: {}", name_, std::strerror(errno));
      filled += static_cast<size_t>(n);
    }
    consumed_ += static_cast<int64_t>(filled);
    return filled;
  }
  int64_t consumed_bytes() const override { return consumed_; }

  /// The first bytes, without consuming them.
  size_t peek(char* buffer, size_t capacity) {
    const ssize_t n = ::pread(fd_, buffer, capacity, 0);
    return n < 0 ? 0 : static_cast<size_t>(n);
  }

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int fd_ = -1;
  int64_t consumed_ = 0;
};

/// The compressed bytes not yet consumed by the decoder.
class Input {
 public:
  explicit Input(std::unique_ptr<PlainSource> file)
      : file_(std::move(file)), buffer_(kInputBytes) {}

  /// Reads more when everything is consumed; false at the end of the file.
  bool refill() {
    if (position < size) return true;
    size = file_->read(buffer_.data(), buffer_.size());
    position = 0;
    return size > 0;
  }
  char* data() { return buffer_.data(); }
  const std::string& name() const { return file_->name(); }
  int64_t consumed_bytes() const { return file_->consumed_bytes(); }

  size_t position = 0;
  size_t size = 0;

 private:
  std::unique_ptr<PlainSource> file_;
  std::vector<char> buffer_;
};

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<PlainSource> file) : input_(std::move(file)) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK)
      raise<DataError>("{}: zlib cannot start", input_.name());
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  size_t read(char* buffer, size_t capacity) override {
    size_t filled = 0;
    while (filled < capacity && !done_) {
      if (!input_.refill()) {
        if (!between_members_)
          damage_ = fmt::format("{} ends in the middle of its gzip stream", input_.name());
        done_ = true;
        break;
      }
      if (between_members_ && started_ && !next_member()) continue;
      between_members_ = false;
      started_ = true;
      filled += inflate_some(buffer + filled, capacity - filled);
    }
    if (filled == 0 && !damage_.empty()) throw DataError(damage_);
    return filled;
  }

  int64_t consumed_bytes() const override { return input_.consumed_bytes(); }

 private:
  /// Zeros after a member are padding, as gzip itself treats them; anything else begins a new
  /// member.
  bool next_member() {
    if (input_.data()[input_.position] == '\0') {
      ++input_.position;
      return false;
    }
    inflateReset(&stream_);
    return true;
  }

  size_t inflate_some(char* buffer, size_t capacity) {
    const size_t chunk = std::min(capacity, size_t{1} << 30);
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + input_.position);
    stream_.avail_in = static_cast<uInt>(input_.size - input_.position);
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(chunk);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    input_.position = input_.size - stream_.avail_in;
    if (status == Z_STREAM_END) {
      between_members_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      damage_ = fmt::format("{} is not a valid gzip stream: {}", input_.name(),
                            stream_.msg ? stream_.msg : "bad data");
      done_ = true;
    }
    return chunk - stream_.avail_out;
  }

  Input input_;
  z_stream stream_{};
  bool between_members_ = false;
  bool started_ = false;
  bool done_ = false;
  std::string damage_; // thrown once what was decoded before it is handed out
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<PlainSource> file)
      : input_(std::move(file)), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) raise<DataError>("{}: zstd cannot start", input_.name());
  }

  size_t read(char* buffer, size_t capacity) override {
    ZSTD_outBuffer out{buffer, capacity, 0};
    while (out.pos < out.size && damage_.empty()) {
      // Bytes already decoded may wait inside the decoder after the file has ended.
      const bool more = input_.refill();
      const size_t before = out.pos;
      ZSTD_inBuffer in{input_.data(), input_.size, input_.position};
      const size_t status = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(status)) {
        damage_ = fmt::format("{} is not a valid zstd stream: {}", input_.name(),
                              ZSTD_getErrorName(status));
        break;
      }
      const bool advanced = in.pos != input_.position || out.pos != before;
      input_.position = in.pos;
      if (advanced) frame_complete_ = status == 0;
      if (!more && out.pos == before) {
        if (!frame_complete_)
          damage_ = fmt::format("{} ends in the middle of its zstd stream", input_.name());
        break;
      }
    }
    if (out.pos == 0 && !damage_.empty()) throw DataError(damage_);
    return out.pos;
  }

  int64_t consumed_bytes() const override { return input_.consumed_bytes(); }

 private:
  Input input_;
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
  bool frame_complete_ = false;
  std::string damage_; // thrown once what was decoded before it is handed out
};

Compression compression_of_content(PlainSource& file) {
  std::array<unsigned char, 4> head{};
  const size_t n = file.peek(reinterpret_cast<char*>(head.data()), head.size());
  if (n >= 3 && head[0] == 0x1F && head[1] == 0x8B && head[2] == 8) return Compression::kGzip;
  if (n >= 4 && head == std::array<unsigned char, 4>{0x28, 0xB5, 0x2F, 0xFD})
    return Compression::kZstd;
  return Compression::kNone;
}

} // namespace

Compression compression_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".gz") return Compression::kGzip;
  if (ending == ".zst" || ending == ".zstd") return Compression::kZstd;
  return Compression::kNone;
}

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path) {
  auto file = std::make_unique<PlainSource>(path);
  Compression compression = compression_of(path);
  if (compression == Compression::kNone) compression = compression_of_content(*file);
  switch (compression) {
  case Compression::kGzip:
    return std::make_unique<GzipSource>(std::move(file));
  case Compression::kZstd:
    return std::make_unique<ZstdSource>(std::move(file));
  case Compression::kNone:
    break;
  }
  return file;
}

} // namespace pentatron::data
