// Records of any bytes end, within the memory that their limit allows; of a JSON array they are its
// elements.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/record_reader.h"

namespace {

constexpr size_t kBufferBytes = 16; // so that small inputs fill it

/// Hands out pieces of a few bytes, so that records cross their ends.
class Pieces final : public pentatron::data::ByteSource {
 public:
  Pieces(std::string_view text, size_t piece) : text_(text), piece_(piece) {}
  size_t read(char* buffer, size_t capacity) override {
    const size_t n = std::min({capacity, piece_, text_.size()});
    std::memcpy(buffer, text_.data(), n);
    text_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view text_;
  size_t piece_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  Pieces source(text, 1 + data[0] % 16);
  const int64_t limit = data[0] < 128 ? 1 << 20 : 8;
  std::vector<Json> elements;
  bool whole = true;
  data::RecordReader records(source, limit, "input", data::RecordReader::Form::kDetect,
                             kBufferBytes);
  const auto check_memory = [&] {
    const size_t most = std::max(kBufferBytes, 2 * (static_cast<size_t>(limit) + 1));
    if (records.memory_bytes() > most) __builtin_trap();
  };
  try {
    std::string_view record;
    for (auto status = records.next(record); status != data::RecordReader::Status::kEnd;
         status = records.next(record)) {
      check_memory();
      if (records.number() > static_cast<int64_t>(size)) __builtin_trap();
      if (status == data::RecordReader::Status::kTooLong) {
        whole = false;
      } else {
        if (static_cast<int64_t>(record.size()) > limit) __builtin_trap();
        elements.push_back(Json::parse(record, nullptr, /*allow_exceptions=*/false));
      }
    }
  } catch (const data::MalformedArray&) {
    check_memory();
    // What a general parser takes for an array is one.
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_array() && text.find('\0') == std::string_view::npos) __builtin_trap();
    return 0;
  }
  if (!records.is_array() || !whole) return 0;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_array() && json != Json(elements)) __builtin_trap();
  return 0;
}
