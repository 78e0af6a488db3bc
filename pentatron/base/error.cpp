#include "pentatron/base/error.h"

namespace pentatron {

void dcheck_failed(const char* condition, const char* file, int line) {
  raise<Error>("internal error: {} does not hold at {}:{}", condition, file, line);
}

} // namespace pentatron
