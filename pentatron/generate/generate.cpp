#include "pentatron/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"
#include "pentatron/kernels/embedding/embedding.h"

namespace pentatron::generate {

void check(const SamplingOptions& options) {
  if (options.max_tokens < 0)
    raise<ConfigError>("max_tokens={} is negative\n  try: 200", options.max_tokens);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    raise<ConfigError>("temperature={} is not a number from 0 on\n  try: 0 for the likeliest token",
                       options.temperature);
  if (!(options.top_p > 0 && options.top_p <= 1))
    raise<ConfigError>("top_p={} is not in (0, 1]\n  try: 0.95", options.top_p);
  if (options.top_k < 0)
    raise<ConfigError>("top_k={} is negative\n  try: 0 for all tokens", options.top_k);
}

int64_t sample_token(std::vector<double> logits, const SamplingOptions& options, double u) {
  check(options);
  PT_DCHECK(!logits.empty());
  if (options.num_tokens > 0 && options.num_tokens < static_cast<int64_t>(logits.size()))
    logits.resize(static_cast<size_t>(options.num_tokens));
  for (const double logit : logits) {
    if (!std::isfinite(logit))
      throw Error("the model's output is not finite, so no token can be drawn from it");
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size()))
    order.resize(static_cast<size_t>(options.top_k));
  const double top = logits[static_cast<size_t>(order.front())];
  std::vector<double> weight;
  double total = 0;
  for (const int64_t token : order) {
    weight.push_back(std::exp((logits[static_cast<size_t>(token)] - top) / options.temperature));
    total += weight.back();
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < weight.size() && (kept == 0 || mass < options.top_p * total))
    mass += weight[kept++];
  double target = u * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0) return order[i];
  }
  return order[kept - 1];
}

std::vector<int64_t> generate(build::ModelView model, std::vector<int64_t> prompt,
                              const SamplingOptions& options,
                              const std::function<void(int64_t)>& on_token) {
  check(options);
  PT_DCHECK(!prompt.empty());
  const int64_t vocab = model.gpt.config().vocab_size;
  if (const int64_t bad =
          kernels::first_bad_id(prompt.data(), static_cast<int64_t>(prompt.size()), vocab);
      bad >= 0) {
    raise<DataError>("token {} of the prompt is not in the model's vocabulary of {}",
                     prompt[static_cast<size_t>(bad)], vocab);
  }
  const at::Device device = model.device;
  const int64_t positions = model.gpt.config().max_position_embeddings;
  const int64_t longest = options.context > 0 ? options.context : positions;
  const Stream stream(options.seed, "sample");
  std::vector<int64_t> text = std::move(prompt), drawn;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    const int64_t length = std::min<int64_t>(longest, static_cast<int64_t>(text.size()));
    at::Tensor ids = at::empty({length}, at::kLong);
    std::copy(text.end() - length, text.end(), ids.data_ptr<int64_t>());
    const nn::SequenceLayout layout = nn::SequenceLayout::dense(1, length, {0}, device);
    nn::ForwardContext ctx{.layout = &layout};
    const at::Tensor logits = model.gpt.logits(ids.to(device), ctx, model.store)
                                  .select(0, length - 1)
                                  .to(at::kDouble)
                                  .cpu();
    const double* values = logits.data_ptr<double>();
    const int64_t token = sample_token(std::vector<double>(values, values + logits.numel()),
                                       options, stream.uniform(static_cast<uint64_t>(i)));
    if (token == options.stop_token) break;
    text.push_back(token);
    drawn.push_back(token);
    if (on_token) on_token(token);
  }
  return drawn;
}

} // namespace pentatron::generate
