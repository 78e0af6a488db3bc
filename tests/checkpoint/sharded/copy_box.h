/// Boxes of tensors in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/sharded/geometry.h"

namespace pentatron::checkpoint::test {

/// Copies `part` of the row-major bytes of `source` to the row-major bytes of `target`.
inline void copy_box(const Box& part, const Box& source, std::span<const std::byte> source_bytes,
                     const Box& target, std::span<std::byte> target_bytes, size_t element) {
  PT_DCHECK(source_bytes.size() == static_cast<size_t>(numel(source)) * element);
  PT_DCHECK(target_bytes.size() == static_cast<size_t>(numel(target)) * element);
  Runs runs(part, source, target);
  for (CopyRun run; runs.next(run);)
    std::memcpy(target_bytes.data() + static_cast<size_t>(run.target) * element,
                source_bytes.data() + static_cast<size_t>(run.source) * element,
                static_cast<size_t>(run.count) * element);
}

} // namespace pentatron::checkpoint::test
