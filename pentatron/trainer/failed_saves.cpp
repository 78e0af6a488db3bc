#include "pentatron/trainer/failed_saves.h"

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"

namespace pentatron::trainer {

FailedSaves::~FailedSaves() {
  try {
    tell();
  } catch (...) { // the log cannot be written
  }
}

void FailedSaves::add(int64_t iteration, const std::string& what, const std::string& why) {
  const auto [sentence, remedy] = parts_of(why);
  FailedSave failed{
      .what = what,
      .iteration = iteration,
      .text = fmt::format("the {} of iteration {} was not saved: {}", what, iteration, sentence),
      .remedy = std::string(remedy)};
  if (on_error_ == OnSaveError::kStop) {
    if (iteration == end_)
      raise<CheckpointError>("{}{}{}", failed.text, remedy.empty() ? "" : "\n  try: ", remedy);
    raise<CheckpointError>("{}\n  try: {}{}checkpoint.on_error=continue to continue without it",
                           failed.text, remedy, remedy.empty() ? "" : ", or ");
  }
  untold_.push_back(failed);
  last_[what] = std::move(failed);
}

void FailedSaves::tell() {
  for (const FailedSave& failed : untold_)
    if (tells_)
      log::error("{}{}{}{}", failed.text,
                 failed.what == "checkpoint" ? "; earlier checkpoints are unchanged" : "",
                 failed.remedy.empty() ? "" : "\n  try: ", failed.remedy);
  untold_.clear();
}

std::optional<FailedSave> FailedSaves::finish() {
  std::optional<FailedSave> end;
  if (!last_.empty()) end = last_.begin()->second; // "checkpoint" is before "export"
  if (end)
    std::erase_if(untold_, [&](const FailedSave& failed) {
      return failed.what == end->what && failed.iteration == end->iteration;
    });
  tell();
  return end;
}

} // namespace pentatron::trainer
