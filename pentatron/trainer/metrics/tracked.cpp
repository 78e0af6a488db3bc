#include "pentatron/trainer/metrics/tracked.h"

#include <algorithm>

namespace pentatron::trainer {

TrackedValues tracked_values(const TrainLog& log) {
  TrackedValues values;
  const auto add = [&](const char* name, const auto& value) {
    if (value) values.emplace_back(name, static_cast<double>(*value));
  };
  for (size_t i = 0; i < log.losses.size(); ++i) {
    std::string name = i == 0 ? "loss" : log.losses[i].first;
    std::replace(name.begin(), name.end(), ' ', '_');
    if (log.losses[i].second) values.emplace_back(name, *log.losses[i].second);
  }
  add("grad_norm", log.grad_norm);
  add("max_attention_logit", log.logits.most);
  add("clipped_heads", log.logits.clipped_heads);
  values.emplace_back("learning_rate", log.learning_rate);
  values.emplace_back("consumed_samples", static_cast<double>(log.consumed_samples));
  if (log.consumed_tokens > 0)
    values.emplace_back("consumed_tokens", static_cast<double>(log.consumed_tokens));
  values.emplace_back("global_batch_size", static_cast<double>(log.global_batch_size));
  values.emplace_back("step_time_s", log.step_time_s);
  add("tokens_per_s", log.tokens_per_s);
  add("tflops", log.tflops);
  add("mfu", log.mfu);
  add("memory_bytes", log.memory_bytes);
  add("loss_scale", log.loss_scale);
  for (const LayerLoad& load : log.experts) {
    values.emplace_back("max_load_" + load.layer, load.largest);
    values.emplace_back("load_entropy_" + load.layer, load.entropy);
    values.emplace_back("unused_experts_" + load.layer, static_cast<double>(load.unused));
    values.emplace_back("dropped_choices_" + load.layer, load.dropped);
  }
  return values;
}

Json tracked_value(const std::string& yaml) {
  Json json = Json::parse(yaml, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json(yaml) : json;
}

} // namespace pentatron::trainer
