// Any bytes are choices of kernels, and entries that a rank can run, or a DataError; what was read
// is written and read again unchanged, and is sorted out on any machine.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/kernels/selection/agree.h"
#include "pentatron/kernels/selection/selection.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron;
  using namespace pentatron::kernels;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Selection read = Selection::parse(text, "input");
    if (Selection::parse(read.text(), "output") != read) __builtin_trap();
    unusable_choices(read);
    const Agreement agreed = agree(read, {runnable_entries()});
    if (!unusable_choices(agreed.selection).empty()) __builtin_trap();
  } catch (const DataError&) {
  }
  try {
    const RunnableEntries read = parse_runnable_entries(text);
    if (parse_runnable_entries(to_text(read)) != read) __builtin_trap();
  } catch (const DataError&) {
  }
  return 0;
}
