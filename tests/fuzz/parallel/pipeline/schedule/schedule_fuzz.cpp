// Any bytes are a schedule or a DataError. One that was read is written and read again unchanged,
// gets a verdict, and if that is good can be lowered.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"
#include "pentatron/parallel/pipeline/schedule/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::pipeline;
  try {
    const Schedule read = parse_schedule({reinterpret_cast<const char*>(data), size});
    if (parse_schedule(to_text(read)) != read) __builtin_trap();
    if (check(read).ok() && !read.lowered && !check(lower(read)).ok()) __builtin_trap();
  } catch (const pentatron::DataError&) {
  }
  return 0;
}
