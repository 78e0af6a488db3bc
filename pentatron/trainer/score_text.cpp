#include "pentatron/trainer/score_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numbers>
#include <span>
#include <string>

#include "pentatron/base/error.h"
#include "pentatron/data/utf8.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/parallelize/load_model.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

constexpr int64_t kIgnored = -100;

TextScoring complete(TextScoring options, const checkpoint::ModelFacts& facts) {
  const int64_t most = std::max(facts.context, facts.config.longest_sequence().value_or(0));
  if (options.context < 0 || options.context > most)
    raise<ConfigError>("--context {} is not between 1 and the model's context of {} tokens\n  try: "
                       "--context {}",
                       options.context, most, most);
  if (options.context == 0) options.context = facts.context;
  if (options.stride < 0 || options.stride > options.context)
    raise<ConfigError>("--stride {} is not between 1 and the context of {} tokens\n  try: --stride "
                       "{}",
                       options.stride, options.context, std::max<int64_t>(1, options.context / 2));
  if (options.stride == 0) options.stride = options.context;
  return options;
}

std::vector<int64_t> first_token(const data::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<int32_t> special;
  tokenizer.encode_with_special("", special);
  int64_t first = tokenizer.eod();
  if (!special.empty()) first = special[0];
  if (first < 0 || first >= vocab_size) return {};
  return {first};
}

} // namespace

double TextScore::bits_per_byte() const {
  if (!bytes_known || bytes == 0) return std::numeric_limits<double>::quiet_NaN();
  return nll / std::numbers::ln2 / static_cast<double>(bytes);
}

TextScorer::TextScorer(checkpoint::ModelSource& source, const data::Tokenizer& tokenizer,
                       const TextScoring& options)
    : tokenizer_(tokenizer), options_(complete(options, source.facts())),
      model_(parallelize::load_model(source, {.config = source.config(),
                                              .build = {.dtype = scalar_type(options.dtype)},
                                              .device = choose_device(options.device),
                                              .max_sequence = options_.context,
                                              .gradients = false})),
      device_(choose_device(options.device)),
      prefix_(first_token(tokenizer, source.config().vocab_size)) {}

void TextScorer::add(std::string_view document, const std::function<void(double)>& done) {
  if (const size_t bad = data::find_invalid_utf8(document); bad != std::string_view::npos)
    raise<DataError>("the text is not valid UTF-8 at byte {}", bad);
  std::vector<int32_t> encoded;
  tokenizer_.encode(document, encoded);
  if (encoded.empty()) return;
  std::vector<int64_t> all = prefix_;
  all.insert(all.end(), encoded.begin(), encoded.end());
  const int64_t vocab = model_.model->config().vocab_size;
  for (const int64_t token : all)
    if (token >= vocab)
      raise<DataError>(
          "the tokenizer produces token {}, which is outside the model's vocabulary of {} tokens",
          token, vocab);
  score_.documents += 1;
  count_bytes(document, all[0]);
  // Token i + 1 is predicted from tokens up to i.
  const auto count = static_cast<int64_t>(all.size()) - 1;
  int64_t predicted = 0;
  while (predicted < count) {
    const int64_t step = predicted == 0 ? options_.context : options_.stride;
    const int64_t end = std::min(predicted + step, count);
    const int64_t begin = std::max<int64_t>(0, end - options_.context);
    Window window;
    window.inputs.assign(all.begin() + begin, all.begin() + end);
    window.labels.assign(all.begin() + begin + 1, all.begin() + end + 1);
    std::fill_n(window.labels.begin(), predicted - begin, kIgnored);
    push(std::move(window));
    predicted = end;
    if (done) done(static_cast<double>(predicted) / static_cast<double>(count));
  }
  score_.tokens += count;
}

/// Those of a first token that is not predicted do not count.
void TextScorer::count_bytes(std::string_view document, int64_t first_id) {
  size_t passed = 0;
  if (prefix_.empty()) {
    const std::string first =
        tokenizer_.decode_with_special(std::span<const int64_t>(&first_id, 1));
    // Not so of a part of a character, and of text that the tokenizer normalises.
    if (!document.starts_with(first)) score_.bytes_known = false;
    passed = std::min(first.size(), document.size());
  }
  score_.bytes += static_cast<int64_t>(document.size() - passed);
}

/// All windows of a batch are padded to the longest one.
void TextScorer::push(Window window) {
  const size_t longest = std::max(longest_, window.inputs.size());
  if (static_cast<int64_t>((windows_.size() + 1) * longest) > options_.batch_tokens) run();
  longest_ = std::max(longest_, window.inputs.size());
  windows_.push_back(std::move(window));
}

TextScore TextScorer::finish() {
  run();
  return score_;
}

void TextScorer::run() {
  if (windows_.empty()) return;
  const auto b = static_cast<int64_t>(windows_.size()), s = static_cast<int64_t>(longest_);
  largest_batch_tokens_ = std::max(largest_batch_tokens_, b * s);
  // Behind the end of a shorter window stands anything: it is not predicted, and not in view.
  const at::Tensor ids = at::zeros({b, s}, at::kLong);
  const at::Tensor labels = at::full({b, s}, kIgnored, at::kLong);
  for (int64_t i = 0; i < b; ++i) {
    const Window& window = windows_[static_cast<size_t>(i)];
    std::ranges::copy(window.inputs, ids.mutable_data_ptr<int64_t>() + i * s);
    std::ranges::copy(window.labels, labels.mutable_data_ptr<int64_t>() + i * s);
  }
  std::vector<uint64_t> samples(windows_.size());
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i;
  const nn::Microbatch batch{.fields = {{"input_ids", nn::to_device(ids.view({-1}), device_)},
                                        {"labels", nn::to_device(labels.view({-1}), device_)}},
                             .layouts = {nn::SequenceLayout::dense(b, s, samples, device_)}};
  nn::StepState state;
  nn::WgradQueue wgrad;
  nn::ForwardContext ctx{.batch = &batch, .wgrad = &wgrad, .state = &state};
  model_.model->whole().forward({}, ctx, *model_.store, nullptr);
  for (const models::LossTerm& term : model_.model->spec().losses)
    if (term.evaluated) score_.nll += state.loss_sum(term.name);
  windows_.clear();
  longest_ = 0;
}

} // namespace pentatron::trainer
