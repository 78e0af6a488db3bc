// Any rank file is refused with a DataError or gives tokens back; with all single bytes added, it
// makes a tokenizer that decodes what it encodes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    data::tokenizer::Ranks ranks = data::tokenizer::read_tiktoken(input);
    std::unordered_set<std::string> known;
    for (auto& [bytes, rank] : ranks) {
      known.insert(bytes);
      rank += 256;
    }
    for (int b = 0; b < 256; ++b) {
      if (!known.contains(std::string(1, static_cast<char>(b))))
        ranks.emplace_back(std::string(1, static_cast<char>(b)), b);
    }
    const auto tokenizer = data::tokenizer::make_tiktoken(
        ranks, {.pattern = std::string(data::tokenizer::kGpt2Pattern)});
    const std::string text = "Hello hello 12\n\xC3\xA9 \xE4\xB8\xAD";
    std::vector<int32_t> ids;
    tokenizer->encode(text, ids);
    if (tokenizer->decode(std::vector<int64_t>(ids.begin(), ids.end())) != text) __builtin_trap();
  } catch (const DataError&) {
  }
  return 0;
}
