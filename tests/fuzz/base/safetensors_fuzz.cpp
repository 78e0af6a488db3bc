// Any bytes are a Safetensors file or a DataError; the bytes of every tensor can be read.
#include <cstddef>
#include <cstdint>

#include "pentatron/base/error.h"
#include "pentatron/base/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto parsed = pentatron::parse_safetensors(std::as_bytes(std::span(data, size)), "input");
    unsigned sum = 0;
    for (const auto& [name, tensor] : parsed.tensors) {
      for (const std::byte b : tensor.data) sum += static_cast<unsigned>(b);
      if (tensor.numel() < 0) __builtin_trap();
    }
    asm volatile("" : : "r"(sum)); // the reads are not optimised away
  } catch (const pentatron::DataError&) {
  }
  return 0;
}
