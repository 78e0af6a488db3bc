#include "pentatron/trainer/contention_notice.h"

#include <utility>

#include <fmt/format.h>

#include "pentatron/base/host_name.h"
#include "pentatron/base/log.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::trainer {

int64_t ContentionNotice::look(double now_s) {
  return watch_.step(now_s) ? world_.size() - world_.rank() : 0;
}

std::string ContentionNotice::news(int64_t largest) {
  const bool told = std::exchange(told_, largest > 0);
  if (told || largest == 0) return "";
  const int from = world_.size() - static_cast<int>(largest);
  std::string text;
  if (const std::optional<Finding>& finding = watch_.finding(); finding && world_.rank() == from)
    text = fmt::format("{}{}\n  try: {}",
                       world_.size() > 1 ? fmt::format("rank {} on {}: ", from, host_name()) : "",
                       finding->what, finding->remedy);
  return comm::broadcast_text(text, from, world_);
}

void ContentionNotice::tell(int64_t largest) {
  if (const std::string text = news(largest); !text.empty()) log::shared_warning("{}", text);
}

} // namespace pentatron::trainer
