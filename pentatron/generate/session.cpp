#include "pentatron/generate/session.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/embedding/embedding.h"

namespace pentatron::generate {

namespace {

/// The new tokens of a pass side by side, and where each text goes on.
struct Pass {
  at::Tensor ids;  ///< [T], padded to a multiple of the tensor ranks under sequence parallel
  at::Tensor rows; ///< [inputs], the last token of each
  nn::SequenceLayout layout;
  std::vector<nn::KvCache::Document> documents;
};

Pass make_pass(const std::vector<Session::Input>& inputs, const nn::KvCache& cache,
               const parallel::TensorParallel& tp, at::Device device) {
  Pass pass;
  int64_t tokens = 0;
  std::vector<int64_t> rows;
  for (const Session::Input& input : inputs) {
    const auto count = static_cast<int64_t>(input.tokens.size());
    PT_DCHECK(count > 0);
    pass.documents.push_back({input.text, tokens, count});
    tokens += count;
    rows.push_back(tokens - 1);
  }
  if (const int64_t rest = tp.sequence ? tokens % tp.size() : 0; rest != 0) {
    pass.documents.push_back({-1, tokens, tp.size() - rest});
    tokens += tp.size() - rest;
  }
  const at::Tensor ids = at::zeros({tokens}, at::kLong), positions = at::zeros({tokens}, at::kInt);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nn::KvCache::Document& document = pass.documents[i];
    const auto begin = static_cast<int32_t>(cache.length(document.sequence));
    for (int64_t t = 0; t < document.count; ++t) {
      ids.data_ptr<int64_t>()[document.first + t] = inputs[i].tokens[static_cast<size_t>(t)];
      positions.data_ptr<int32_t>()[document.first + t] = begin + static_cast<int32_t>(t);
    }
  }
  pass.ids = ids.to(device);
  pass.rows = at::tensor(rows, at::kLong).to(device);
  pass.layout.batch = 1;
  pass.layout.sequence = tokens;
  pass.layout.positions = positions.to(device);
  for (const nn::KvCache::Document& document : pass.documents)
    pass.layout.document_starts.push_back(document.first);
  pass.layout.document_starts.push_back(tokens);
  if (tp.sequence) pass.layout.cut_outer(tp.rank(), tp.size());
  return pass;
}

} // namespace

Session::Session(parallelize::ModelView model, int64_t texts)
    : model_(std::move(model)), cache_(texts), tokens_(static_cast<size_t>(texts)) {}

void Session::truncate(int64_t text, int64_t length) {
  cache_.truncate(text, length);
  tokens_[static_cast<size_t>(text)].resize(static_cast<size_t>(length));
}

bool Session::has_logits() const {
  return model_.places.rank_of_stage.back() == model_.places.pp.rank();
}

void Session::share(const at::Tensor& x) const {
  if (model_.places.pp.size() > 1)
    comm::broadcast_(x, model_.places.rank_of_stage.back(), model_.places.pp);
}

at::Tensor Session::read(const std::vector<Input>& inputs) {
  const models::ModelConfig& config = model_.gpt.config();
  for (const Input& input : inputs) {
    if (const int64_t bad = kernels::first_bad_id(
            input.tokens.data(), static_cast<int64_t>(input.tokens.size()), config.vocab_size);
        bad >= 0) {
      raise<DataError>("token {} of the prompt is not in the model's vocabulary of {}",
                       input.tokens[static_cast<size_t>(bad)], config.vocab_size);
    }
  }
  const Pass pass = make_pass(inputs, cache_, model_.gpt.tensor_parallel(), model_.device);
  cache_.begin(pass.documents);
  nn::ForwardContext ctx{.layout = &pass.layout, .cache = &cache_};
  const auto& [pp, rank_of_stage] = model_.places;
  at::Tensor h = pass.ids;
  size_t chunk = 0;
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    if (rank_of_stage[stage] != pp.rank()) continue;
    const int before = stage == 0 ? pp.rank() : rank_of_stage[stage - 1];
    if (before != pp.rank()) {
      h = at::empty({pass.layout.outer_tokens(), config.hidden_size},
                    at::TensorOptions(model_.gpt.dtype()).device(model_.device));
      comm::recv(h, before, pp);
    }
    h = model_.gpt.infer(chunk++, h, ctx, model_.store, pass.rows);
    const bool last = stage + 1 == rank_of_stage.size();
    if (!last && rank_of_stage[stage + 1] != pp.rank())
      comm::send(h.contiguous(), rank_of_stage[stage + 1], pp);
  }
  cache_.end();
  for (const Input& input : inputs) {
    std::vector<int64_t>& text = tokens_[static_cast<size_t>(input.text)];
    text.insert(text.end(), input.tokens.begin(), input.tokens.end());
  }
  return has_logits() ? h.cpu() : at::Tensor();
}

} // namespace pentatron::generate
