#include "pentatron/evaluation/tokenize_requests.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/white_space.h"

namespace pentatron::evaluation {

RequestTokens::RequestTokens(const data::Tokenizer& tokenizer, const TextEnds& ends,
                             int64_t max_length, std::string task)
    : tokenizer_(tokenizer), ends_(ends), max_length_(max_length), task_(std::move(task)) {}

std::vector<int64_t> RequestTokens::encode(std::string_view text, bool with_special) const {
  std::vector<int32_t> tokens;
  const bool begins = !ends_.prefix_text.empty() && text.starts_with(ends_.prefix_text);
  if (with_special && !begins)
    tokenizer_.encode_with_special(text, tokens);
  else
    tokenizer_.encode(text, tokens);
  return {tokens.begin(), tokens.end()};
}

int64_t RequestTokens::prefix() const {
  if (ends_.prefix < 0)
    raise<DataError>("task {} has a text without a context, and the tokenizer has no token that "
                     "begins a text\n  try: a tokenizer_config.json with bos_token or eos_token",
                     task_);
  return ends_.prefix;
}

ScoredTokens RequestTokens::pair(const Request& request) const {
  std::vector<int64_t> context, all;
  if (request.context.empty()) {
    all = encode(request.continuation, false);
    context = {prefix()};
    if (all.empty() || all[0] != context[0]) all.insert(all.begin(), context[0]);
  } else {
    context = encode(without_trailing_space(request.context), true);
    all = encode(request.context + request.continuation, true);
    // The context stays as it is encoded alone, also where tokens merge across the border.
    std::copy_n(context.begin(), std::min(context.size(), all.size()), all.begin());
  }
  const int64_t predicted = std::ssize(all) - std::ssize(context);
  if (predicted <= 0)
    raise<DataError>("task {}: the continuation '{}' adds no token to its context\n  try: answers "
                     "that are not empty",
                     task_, request.continuation);
  if (context.empty())
    raise<DataError>(
        "task {}: a context contains only white space\n  try: a context with words, or none",
        task_);
  if (predicted > max_length_)
    raise<DataError>("task {}: a continuation has {} tokens, more than eval.max_length={}\n  try: "
                     "eval.max_length={}",
                     task_, predicted, max_length_, predicted);
  const int64_t kept = std::min(std::ssize(all), max_length_ + 1);
  all.erase(all.begin(), all.end() - kept);
  return {.tokens = std::move(all), .predicted = predicted};
}

std::vector<ScoredTokens> RequestTokens::windows(const Request& request) const {
  const std::vector<int64_t> all = encode(request.continuation, true);
  const int64_t count = std::ssize(all);
  std::vector<ScoredTokens> windows;
  for (int64_t done = 0; done < count;) {
    const int64_t predicted = std::min(max_length_, count - done), end = done + predicted;
    ScoredTokens window{.tokens = {}, .predicted = predicted};
    if (done == 0) window.tokens.push_back(prefix());
    const int64_t begin = done == 0 ? 0 : end - max_length_ - 1;
    window.tokens.insert(window.tokens.end(), all.begin() + begin, all.begin() + end);
    windows.push_back(std::move(window));
    done = end;
  }
  return windows;
}

std::vector<ScoredTokens> RequestTokens::scored(const Request& request) const {
  if (request.kind == Request::Kind::kRolling) return windows(request);
  return {pair(request)};
}

std::vector<int64_t> RequestTokens::prompt(const Request& request, int64_t new_tokens) const {
  const int64_t room = max_length_ - new_tokens;
  if (room <= 0)
    raise<DataError>("task {} generates {} tokens, which leaves no room for a prompt in "
                     "eval.max_length={}\n  try: max_gen_toks: {} in the task's generation_kwargs",
                     task_, new_tokens, max_length_, std::max<int64_t>(1, max_length_ / 2));
  std::vector<int64_t> tokens = encode(request.context, true);
  if (tokens.empty()) tokens = {prefix()};
  tokens.erase(tokens.begin(), tokens.end() - std::min(std::ssize(tokens), room));
  return tokens;
}

} // namespace pentatron::evaluation
