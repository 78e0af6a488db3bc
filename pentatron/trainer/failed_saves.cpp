#include "pentatron/trainer/failed_saves.h"

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"

namespace pentatron::trainer {

void FailedSaves::add(int64_t iteration, const std::string& what, const std::string& why) {
  const auto [sentence, remedy] = parts_of(why);
  std::string text =
      fmt::format("the {} of iteration {} was not saved: {}", what, iteration, sentence);
  if (on_error_ == OnSaveError::kStop)
    raise<CheckpointError>("{}\n  try: {}{}checkpoint.on_error=continue to continue without it",
                           text, remedy, remedy.empty() ? "" : ", or ");
  untold_.push_back(text);
  last_[what] = std::move(text);
}

void FailedSaves::tell() {
  for (const std::string& text : untold_)
    if (tells_) log::error("{}; earlier checkpoints are unchanged", text);
  untold_.clear();
}

std::map<std::string, std::string> FailedSaves::finish() {
  for (const auto& [what, text] : last_) std::erase(untold_, text);
  tell();
  return last_;
}

} // namespace pentatron::trainer
