#include "pentatron/serve/ranked_session.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/comm/gather_text.h"

namespace pentatron::serve {

namespace {

using generate::Session;

enum Call : int64_t { kOpen, kClose, kRead, kStop };

void put(std::vector<int64_t>& told, std::span<const int64_t> tokens) {
  told.push_back(std::ssize(tokens));
  told.insert(told.end(), tokens.begin(), tokens.end());
}

std::span<const int64_t> take(const int64_t*& next) {
  const int64_t count = *next++;
  const std::span<const int64_t> tokens(next, static_cast<size_t>(count));
  next += count;
  return tokens;
}

} // namespace

RankedSession::RankedSession(parallelize::ModelView model,
                             const generate::BatchSession::Options& options, comm::Group world)
    : world_(std::move(world)), session_(std::move(model), options) {}

int64_t RankedSession::open(int64_t text, const std::vector<int64_t>& tokens, int64_t variant,
                            bool take_over) {
  if (world_.size() > 1) {
    told_.insert(told_.end(), {kOpen, text, variant, take_over ? 1 : 0});
    put(told_, tokens);
  }
  return session_.open(text, tokens, variant, take_over);
}

void RankedSession::close(int64_t text) {
  if (world_.size() > 1) told_.insert(told_.end(), {kClose, text});
  session_.close(text);
}

at::Tensor RankedSession::read(const std::vector<Session::Input>& inputs) {
  if (world_.size() > 1) {
    told_.insert(told_.end(), {kRead, std::ssize(inputs)});
    for (const Session::Input& input : inputs) {
      told_.insert(told_.end(), {input.text, input.variant, input.logits});
      put(told_, input.tokens);
      put(told_, input.source);
    }
    tell();
  }
  return read_here(inputs);
}

void RankedSession::tell_idle() {
  if (world_.size() > 1) tell();
}

void RankedSession::stop() {
  if (world_.size() == 1) return;
  told_.push_back(kStop);
  tell();
}

void RankedSession::tell() {
  std::string text(told_.size() * sizeof(int64_t), '\0');
  if (!told_.empty()) std::memcpy(text.data(), told_.data(), text.size());
  comm::broadcast_text(text, 0, world_);
  told_.clear();
}

at::Tensor RankedSession::read_here(const std::vector<Session::Input>& inputs) {
  int64_t rows = 0;
  for (const Session::Input& input : inputs) rows += input.logits;
  at::Tensor logits = session_.read(inputs);
  if (rows == 0) return {};
  const Session& session = session_.session();
  logits = logits.defined()
               ? logits.to(at::kFloat).contiguous()
               : at::empty({rows, session.model().model.config().vocab_size}, at::kFloat);
  session.share(logits);
  return logits;
}

void RankedSession::follow() {
  while (true) {
    const std::string text = comm::broadcast_text({}, 0, world_);
    std::vector<int64_t> told(text.size() / sizeof(int64_t));
    if (!told.empty()) std::memcpy(told.data(), text.data(), text.size());
    const int64_t* next = told.data();
    while (next < told.data() + told.size())
      if (!repeat(next)) return;
  }
}

bool RankedSession::repeat(const int64_t*& next) {
  switch (*next++) {
  case kOpen: {
    const int64_t text = next[0], variant = next[1];
    const bool take_over = next[2] != 0;
    next += 3;
    session_.open(text, take(next), variant, take_over);
    return true;
  }
  case kClose:
    session_.close(*next++);
    return true;
  case kRead: {
    std::vector<Session::Input> inputs(static_cast<size_t>(*next++));
    for (Session::Input& input : inputs) {
      input.text = *next++;
      input.variant = *next++;
      input.logits = *next++;
      input.tokens = take(next);
      input.source = take(next);
    }
    read_here(inputs);
    return true;
  }
  default:
    return false;
  }
}

} // namespace pentatron::serve
