#include "pentatron/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pentatron/base/error.h"
#include "pentatron/base/philox.h"

namespace pentatron::generate {

namespace {

/// One text on its way.
struct Writing {
  size_t number = 0;
  std::vector<int64_t> source; ///< the prompt, of a model with an encoder
  std::vector<int64_t> all;    ///< prompt, or the decoder's first token, and new tokens
  std::vector<int64_t> window; ///< what the model sees: the end of `all`
  Text text;
  bool done = false;
};

/// An encoder reads the prompt, and the decoder begins with its start token.
void begin_with(const Session& session, const std::vector<int64_t>& prompt, Writing& writing) {
  PT_DCHECK(!prompt.empty());
  if (session.has_sources()) {
    writing.source = prompt;
    writing.all = {session.model().model.config().decoder_start_token};
  } else {
    writing.all = prompt;
  }
}

class Writer {
 public:
  Writer(Session& session, const Options& options, const OnToken& on_token)
      : session_(session), options_(options), on_token_(on_token), stream_(options.seed, "sample") {
    const models::ModelConfig& model = session.model().model.config();
    context_ = model.longest_sequence().value_or(std::numeric_limits<int64_t>::max());
    if (options.context > 0) context_ = std::min(context_, options.context);
  }

  void run(std::vector<Writing>& texts) {
    for (Writing& text : texts) {
      text.window = text.all;
      text.done = options_.max_new_tokens == 0;
    }
    while (true) {
      std::vector<Session::Input> inputs;
      std::vector<Writing*> going;
      for (size_t i = 0; i < texts.size(); ++i) {
        Writing& text = texts[i];
        if (text.done) continue;
        fit(text);
        const auto place = static_cast<int64_t>(i);
        inputs.push_back({.text = place,
                          .tokens = unread(text, place),
                          .variant = options_.variants.empty() ? 0 : options_.variants[i]});
        if (session_.tokens(place).empty()) inputs.back().source = text.source;
        going.push_back(&text);
      }
      if (going.empty()) return;
      step(inputs, going);
    }
  }

 private:
  /// Keeps the later half of a text that has no room for another token.
  void fit(Writing& text) const {
    const auto limit = static_cast<size_t>(context_);
    if (text.window.size() <= limit) return;
    const size_t kept = std::max<size_t>(1, limit / 2);
    text.window.erase(text.window.begin(), text.window.end() - static_cast<std::ptrdiff_t>(kept));
  }

  /// What the session has not read of the window; it forgets what it read instead of that.
  std::span<const int64_t> unread(const Writing& text, int64_t place) {
    const std::vector<int64_t>&read = session_.tokens(place), &window = text.window;
    const auto differ = std::mismatch(read.begin(), read.end(), window.begin(), window.end() - 1);
    const auto same = static_cast<size_t>(differ.first - read.begin());
    if (same < read.size()) session_.truncate(place, static_cast<int64_t>(same));
    return std::span(window).subspan(same);
  }

  void step(const std::vector<Session::Input>& inputs, const std::vector<Writing*>& going) {
    const at::Tensor logits = session_.read(inputs);
    const auto count = static_cast<int64_t>(going.size());
    const at::Tensor drawn = at::empty({2, count}, at::kDouble);
    auto* const tokens = drawn.data_ptr<double>();
    if (logits.defined()) {
      const at::Tensor rows = logits.to(at::kFloat).contiguous();
      const auto width = static_cast<size_t>(rows.size(1));
      for (int64_t i = 0; i < count; ++i) {
        const Writing& text = *going[static_cast<size_t>(i)];
        const uint64_t number =
            options_.numbers.empty() ? text.number : options_.numbers[text.number];
        const uint64_t address = (number << 32) + text.text.tokens.size();
        const Drawn one = sample_token({rows.data_ptr<float>() + i * rows.size(1), width},
                                       options_.sampling, text.all, stream_.uniform(address));
        tokens[i] = static_cast<double>(one.token);
        tokens[count + i] = one.logprob;
      }
    }
    session_.share(drawn);
    for (int64_t i = 0; i < count; ++i)
      take(*going[static_cast<size_t>(i)], {static_cast<int64_t>(tokens[i]), tokens[count + i]});
  }

  void take(Writing& text, const Drawn& drawn) {
    text.all.push_back(drawn.token);
    text.window.push_back(drawn.token);
    text.text.tokens.push_back(drawn.token);
    text.text.logprobs.push_back(drawn.logprob);
    const auto finish = [&](Finish why) {
      text.done = true;
      text.text.finish = why;
    };
    const std::vector<int64_t>& stops = options_.stop_tokens;
    if (static_cast<int64_t>(text.text.tokens.size()) == options_.max_new_tokens)
      finish(Finish::kLength);
    if (on_token_ && !on_token_(text.number, drawn)) finish(Finish::kCaller);
    if (std::find(stops.begin(), stops.end(), drawn.token) != stops.end())
      finish(Finish::kStopToken);
  }

  Session& session_;
  const Options& options_;
  const OnToken& on_token_;
  Stream stream_;
  int64_t context_ = 0;
};

} // namespace

void check(const Options& options) {
  check(options.sampling);
  if (options.max_new_tokens < 0)
    raise<ConfigError>("--max-new-tokens {} is negative\n  try: --max-new-tokens 200",
                       options.max_new_tokens);
}

std::vector<Text> generate(parallelize::ModelView model,
                           const std::vector<std::vector<int64_t>>& prompts, const Options& options,
                           const OnToken& on_token) {
  check(options);
  Session session(std::move(model), static_cast<int64_t>(prompts.size()), options.fp8_cache);
  std::vector<Writing> writings(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    writings[i].number = i;
    begin_with(session, prompts[i], writings[i]);
  }
  Writer(session, options, on_token).run(writings);
  std::vector<Text> texts;
  for (Writing& writing : writings) texts.push_back(std::move(writing.text));
  return texts;
}

Text continue_text(Session& session, const std::vector<int64_t>& prompt, const Options& options,
                   const OnToken& on_token) {
  check(options);
  std::vector<Writing> writings(1);
  begin_with(session, prompt, writings[0]);
  Writer(session, options, on_token).run(writings);
  return std::move(writings[0].text);
}

} // namespace pentatron::generate
