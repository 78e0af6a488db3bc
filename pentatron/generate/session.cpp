#include "pentatron/generate/session.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::generate {

namespace {

/// The new tokens of a pass side by side, and where each text goes on.
struct Pass {
  nn::Microbatch batch; ///< padded to a multiple of the tensor ranks under sequence parallel
  at::Tensor rows;      ///< [inputs], the last token of each
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
  pass.batch.fields = {{"input_ids", ids.to(device)}};
  pass.rows = at::tensor(rows, at::kLong).to(device);
  nn::SequenceLayout& layout = pass.batch.layouts.emplace_back();
  layout.batch = 1;
  layout.sequence = tokens;
  layout.positions = positions.to(device);
  for (const nn::KvCache::Document& document : pass.documents)
    layout.document_starts.push_back(document.first);
  layout.document_starts.push_back(tokens);
  if (tp.sequence) layout.cut_outer(tp.rank(), tp.size());
  return pass;
}

} // namespace

Session::Session(parallelize::ModelView model, int64_t texts)
    : model_(std::move(model)),
      schedule_(pipeline::lower(pipeline::one_pass(model_.places.rank_of_stage))),
      runtime_(parallelize::chunks_of(model_.model), model_.store, model_.places.pp,
               parallelize::boundaries_of(model_.model, model_.places, model_.device)),
      cache_(texts), tokens_(static_cast<size_t>(texts)) {}

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
  const models::ModelConfig& config = model_.model.config();
  for (const Input& input : inputs) {
    if (const int64_t bad = kernels::first_bad_id(
            input.tokens.data(), static_cast<int64_t>(input.tokens.size()), config.vocab_size);
        bad >= 0) {
      raise<DataError>("token {} of the prompt is not in the model's vocabulary of {}",
                       input.tokens[static_cast<size_t>(bad)], config.vocab_size);
    }
  }
  const Pass pass = make_pass(inputs, cache_, model_.model.tensor_parallel(), model_.device);
  cache_.begin(pass.documents);
  nn::StepState state;
  nn::PassResults results;
  runtime_.run(schedule_, {pass.batch}, state,
               {.wanted = {.loss = false, .logits = true, .logit_rows = pass.rows, .hidden = false},
                .results = &results,
                .cache = &cache_});
  cache_.end();
  for (const Input& input : inputs) {
    std::vector<int64_t>& text = tokens_[static_cast<size_t>(input.text)];
    text.insert(text.end(), input.tokens.begin(), input.tokens.end());
  }
  return has_logits() ? results.at("logits").cpu() : at::Tensor();
}

} // namespace pentatron::generate
