#include "pentatron/trainer/delayed_scales.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/nn/host_copies.h"

namespace pentatron::trainer {

namespace {

constexpr std::array<const char*, nn::kNumOperands> kOperandNames = {"input", "weight", "gradient"};
constexpr auto kNumOperands = static_cast<int64_t>(nn::kNumOperands);

} // namespace

void DelayedScales::attach(nn::ParamList& params, const Config& config, at::Device device,
                           const comm::Group& world) {
  const MixedPrecisionConfig& c = config.mixed_precision;
  if (c.fp8 == Fp8Format::kNone || c.fp8_recipe != Fp8Recipe::kDelayed) return;
  std::string own;
  for (const nn::Param& param : params)
    if (param.low_precision) own += param.name() + "\n";
  for (const std::string& names : comm::gather_text(own, world)) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);)
      histories_.try_emplace(name, nn::DelayedScaling{.length = c.fp8_amax_history_len,
                                                      .most_recent = c.fp8_amax_compute_algo ==
                                                                     AmaxAlgorithm::kMostRecent,
                                                      .margin = c.fp8_margin});
  }
  for (nn::Param& param : params)
    if (param.low_precision) param.low_precision->delayed = &histories_.at(param.name());
  const auto scaled = [](const nn::Param& param) {
    return param.low_precision && param.low_precision->scaled_products;
  };
  if (std::ranges::none_of(params, scaled)) return;
  device_seen_ =
      at::zeros({std::ssize(histories_), kNumOperands}, at::device(device).dtype(at::kFloat));
  float* place = device_seen_.data_ptr<float>();
  for (auto& [name, history] : histories_) {
    history.collect_on_device(place);
    place += kNumOperands;
  }
}

void DelayedScales::begin_step() {
  if (device_seen_.defined()) device_seen_.zero_();
  for (auto& [name, history] : histories_) history.begin_step();
}

void DelayedScales::end_step(const comm::Group& world) {
  if (!on()) return;
  at::Tensor seen;
  if (device_seen_.defined()) {
    seen = nn::host_values(device_seen_).clone();
  } else {
    seen = at::zeros({std::ssize(histories_), kNumOperands}, at::kFloat);
    float* place = seen.data_ptr<float>();
    for (const auto& [name, history] : histories_)
      for (const float amax : history.seen()) *place++ = amax;
  }
  if (!planted("largest_sizes_of_one_rank")) comm::all_reduce_(seen, comm::ReduceOp::kMax, world);
  const float* next = seen.const_data_ptr<float>();
  for (auto& [name, history] : histories_) {
    std::array<float, nn::kNumOperands> all{};
    for (float& amax : all) amax = *next++;
    history.end_step(all);
  }
}

std::string DelayedScales::to_json() const {
  Json json = Json::object();
  for (const auto& [name, history] : histories_)
    for (size_t i = 0; i < nn::kNumOperands; ++i)
      json[name][kOperandNames[i]] = {{"used", history.entries()[i].used},
                                      {"history", history.entries()[i].history}};
  return json.dump() + "\n";
}

void DelayedScales::resume(const std::string& text, const std::string& folder) {
  if (!on()) return;
  if (text.empty())
    log::shared_warning("{}: the checkpoint contains no delayed scales, so they start at 1",
                        folder);
  load(text.empty() ? "{}" : text, folder + "/" + kAmaxFile);
}

void DelayedScales::load(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  for (auto& [name, history] : histories_) {
    std::array<nn::AmaxHistory::Entry, nn::kNumOperands> entries;
    const auto found = json.find(name);
    for (size_t i = 0; i < nn::kNumOperands && found != json.end(); ++i) try {
        const Json& one = found->at(kOperandNames[i]);
        entries[i] = {.used = one.at("used").get<float>(),
                      .history = one.at("history").get<std::vector<float>>()};
      } catch (const Json::exception& error) {
        raise<CheckpointError>("{}: {} of {} is not a history of largest values: {}", origin,
                               kOperandNames[i], name, error.what());
      }
    history.set_entries(std::move(entries));
  }
}

} // namespace pentatron::trainer
