#include "pentatron/trainer/run_summary.h"

#include <chrono>
#include <cmath>
#include <unistd.h>

#include <fmt/format.h>

#include "pentatron/base/host_name.h"
#include "pentatron/base/json.h"
#include "pentatron/base/sha256.h"

namespace pentatron::trainer {

namespace {

constexpr size_t kMaxReason = 2000;

OrderedJson json_of(const std::optional<RunSummary::Best>& best) {
  if (!best) return nullptr;
  return {{"iteration", best->iteration}, {"value", best->value}};
}

OrderedJson known(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

void add_value(std::optional<RunSummary::Best>& last, std::optional<RunSummary::Best>& best,
               int64_t iteration, double value) {
  if (!std::isfinite(value)) return;
  last = {iteration, value};
  if (!best || value < best->value) best = last;
}

} // namespace

void RunSummary::add_loss(int64_t at, double loss) {
  add_value(last_loss, best_loss, at, loss);
}

void RunSummary::add_validation_loss(int64_t at, double loss) {
  add_value(last_validation_loss, best_validation_loss, at, loss);
}

std::string run_summary_json(const RunSummary& s) {
  const double speed = s.training_seconds > 0 ? s.timed_tokens / s.training_seconds : 0;
  const OrderedJson json = {{"format", 1},
                            {"name", s.name},
                            {"id", s.id},
                            {"exit_reason", s.exit_reason.substr(0, kMaxReason)},
                            {"started", s.started},
                            {"ended", known(s.ended)},
                            {"iteration", s.iteration},
                            {"total_iterations", s.total_iterations},
                            {"resumed_iteration", s.resumed_iteration},
                            {"consumed_samples", s.consumed_samples},
                            {"consumed_tokens", s.consumed_tokens},
                            {"training_seconds", s.training_seconds},
                            {"tokens_per_second", speed},
                            {"last_loss", json_of(s.last_loss)},
                            {"best_loss", json_of(s.best_loss)},
                            {"last_validation_loss", json_of(s.last_validation_loss)},
                            {"best_validation_loss", json_of(s.best_validation_loss)},
                            {"skipped_iterations", s.skipped_iterations},
                            {"nan_iterations", s.nan_iterations},
                            {"started_from", known(s.started_from)},
                            {"config_hash", s.config_hash},
                            {"pentatron", known(s.version)},
                            {"torch", known(s.torch_version)},
                            {"device", known(s.device)},
                            {"ranks", s.ranks},
                            {"layout", known(s.layout)}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string earlier_run_id(const std::filesystem::path& file) {
  try {
    const std::string id = json_get_or<std::string>(
        read_json(file, {.max_bytes = size_t{1} << 20, .max_depth = 8}), "id", "", "run.json");
    if (id.size() == 8 && id.find_first_not_of("0123456789abcdef") == std::string::npos) return id;
  } catch (const DataError&) { // it is written anew
  }
  return "";
}

std::string new_run_id() {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return sha256(fmt::format("{} {} {}", host_name(), ::getpid(), now)).substr(0, 8);
}

} // namespace pentatron::trainer
