#include "pentatron/generate/batch_session.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::generate {

namespace {

constexpr int64_t kPageTokens = Session::kPage;

int64_t pages_of(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

} // namespace

BatchSession::BatchSession(parallelize::ModelView model, const Options& options)
    : options_(options), session_(std::move(model), options.texts, options.fp8_cache),
      tree_(kPageTokens), places_(static_cast<size_t>(options.texts)) {
  options_.share = options_.share && !session_.has_sources();
}

int64_t BatchSession::open(int64_t text, std::span<const int64_t> tokens, int64_t variant,
                           bool take_over) {
  Place& place = places_[static_cast<size_t>(text)];
  PT_DCHECK(!place.open && !tokens.empty());
  place = {.open = true, .variant = variant, .path = {}};
  if (!take_over || !options_.share) return 0;
  place.path = tree_.find(variant, tokens, (std::ssize(tokens) - 1) / kPageTokens);
  int64_t begin = 0;
  for (const PrefixTree::Node* const node : place.path) {
    session_.adopt(text, tokens.subspan(static_cast<size_t>(begin), kPageTokens),
                   PrefixTree::block_of(*node));
    begin += kPageTokens;
  }
  return begin;
}

void BatchSession::close(int64_t text) {
  Place& place = places_[static_cast<size_t>(text)];
  PT_DCHECK(place.open);
  tree_.release(place.path);
  session_.truncate(text, 0);
  place.open = false;
}

at::Tensor BatchSession::read(const std::vector<Session::Input>& inputs) {
  int64_t needed = 0;
  for (const Session::Input& input : inputs) {
    PT_DCHECK(places_[static_cast<size_t>(input.text)].open);
    needed += pages_needed(input.text, std::ssize(input.tokens));
  }
  PT_DCHECK(needed <= pages_free());
  while (pages_held() + needed > options_.pages && tree_.drop_one()) {
  }
  at::Tensor logits = session_.read(inputs);
  for (const Session::Input& input : inputs) share_full_pages(input.text);
  return logits;
}

void BatchSession::share_full_pages(int64_t text) {
  if (!options_.share) return;
  Place& place = places_[static_cast<size_t>(text)];
  const std::vector<int64_t>& tokens = session_.tokens(text);
  while (std::ssize(place.path) < std::ssize(tokens) / kPageTokens) {
    const auto page = static_cast<int64_t>(place.path.size());
    nn::KvCache::Block block = session_.block(text, page);
    tree_.extend(place.variant, place.path,
                 std::span(tokens).subspan(static_cast<size_t>(page * kPageTokens), kPageTokens),
                 block);
    session_.replace(text, page, block);
  }
}

int64_t BatchSession::own_pages(int64_t text) const {
  return pages_of(length(text)) - std::ssize(places_[static_cast<size_t>(text)].path);
}

int64_t BatchSession::pages_needed(int64_t text, int64_t count) const {
  return pages_of(length(text) + count) - pages_of(length(text));
}

int64_t BatchSession::pages_free() const {
  int64_t own = 0;
  for (int64_t text = 0; text < options_.texts; ++text) own += own_pages(text);
  return options_.pages - own - tree_.pages_in_use();
}

int64_t BatchSession::pages_held() const {
  int64_t own = 0;
  for (int64_t text = 0; text < options_.texts; ++text) own += own_pages(text);
  return own + tree_.pages();
}

} // namespace pentatron::generate
