// Any bytes are a GGUF file or a DataError; the bytes of every tensor can be read, and every key
// can be asked for as anything.
#include <cstddef>
#include <cstdint>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  try {
    const ParsedGguf parsed = parse_gguf(std::as_bytes(std::span(data, size)), "input");
    unsigned sum = 0;
    for (const GgufTensor& tensor : parsed.tensors) {
      for (const std::byte b : tensor.data) sum += static_cast<unsigned>(b);
      if (tensor.shape.size() > 4) __builtin_trap();
    }
    asm volatile("" : : "r"(sum)); // the reads are not optimised away
    const GgufKeys keys(parsed.metadata, "input");
    for (const auto& [key, value] : parsed.metadata) {
      if (keys.find(key) == nullptr) __builtin_trap();
      const auto ask = [](auto&& get) {
        try {
          get();
        } catch (const DataError&) {
        }
      };
      ask([&, &k = key] { keys.text(k); });
      ask([&, &k = key] { keys.find_integer(k); });
      ask([&, &k = key] { keys.find_number(k); });
      ask([&, &k = key] { keys.find_bool(k); });
      ask([&, &k = key] { keys.find_texts(k); });
      ask([&, &k = key] { keys.find_integers(k); });
      ask([&, &k = key] { keys.find_numbers(k); });
    }
  } catch (const DataError&) {
  }
  return 0;
}
