#include "pentatron/generate/session.h"

#include <ATen/ATen.h>

#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/parallel/pipeline/schedule/forward_only.h"
#include "pentatron/parallel/pipeline/schedule/lower.h"

namespace pentatron::generate {

namespace {

/// Tokens of several texts side by side, in one stream.
struct Stream {
  at::Tensor ids;
  nn::SequenceLayout layout; ///< padded to a multiple of the tensor ranks under sequence parallel
  std::vector<nn::KvCache::Document> documents;
};

/// `begin_of(text)`: the position of its first token.
template <class F>
Stream make_stream(const std::vector<std::pair<int64_t, std::span<const int64_t>>>& texts,
                   const F& begin_of, const parallel::TensorParallel& tp, at::Device device) {
  Stream stream;
  int64_t tokens = 0;
  for (const auto& [text, own] : texts) {
    const auto count = static_cast<int64_t>(own.size());
    stream.documents.push_back({text, tokens, count});
    tokens += count;
  }
  if (const int64_t rest = tp.sequence ? tokens % tp.size() : 0; rest != 0) {
    stream.documents.push_back({-1, tokens, tp.size() - rest});
    tokens += tp.size() - rest;
  }
  const at::Tensor ids = at::zeros({tokens}, at::kLong), positions = at::zeros({tokens}, at::kInt);
  for (size_t i = 0; i < texts.size(); ++i) {
    const nn::KvCache::Document& document = stream.documents[i];
    const auto begin = static_cast<int32_t>(begin_of(document.sequence));
    for (int64_t t = 0; t < document.count; ++t) {
      ids.data_ptr<int64_t>()[document.first + t] = texts[i].second[static_cast<size_t>(t)];
      positions.data_ptr<int32_t>()[document.first + t] = begin + static_cast<int32_t>(t);
    }
  }
  stream.ids = ids.to(device);
  stream.layout.batch = 1;
  stream.layout.sequence = tokens;
  stream.layout.sample_starts = {0, tokens};
  stream.layout.positions = positions.to(device);
  for (const nn::KvCache::Document& document : stream.documents)
    stream.layout.document_starts.push_back(document.first);
  stream.layout.document_starts.push_back(tokens);
  if (tp.sequence) stream.layout.cut_outer(tp.rank(), tp.size());
  return stream;
}

/// One forward pass.
struct Pass {
  nn::Microbatch batch;
  at::Tensor rows; ///< whose logits are wanted
  std::vector<nn::KvCache::Document> documents, sources;
  std::vector<nn::VariantRows> variants;
};

Pass make_pass(const std::vector<Session::Input>& inputs, const nn::KvCache& cache,
               bool has_sources, const parallel::TensorParallel& tp, at::Device device) {
  std::vector<std::pair<int64_t, std::span<const int64_t>>> texts, sources;
  for (const Session::Input& input : inputs) {
    PT_DCHECK(!input.tokens.empty());
    PT_DCHECK((has_sources && cache.length(input.text) == 0) == !input.source.empty());
    texts.emplace_back(input.text, input.tokens);
    if (!input.source.empty()) sources.emplace_back(input.text, input.source);
  }
  Pass pass;
  Stream read = make_stream(
      texts, [&](int64_t text) { return cache.length(text); }, tp, device);
  std::vector<int64_t> rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t end = read.documents[i].first + read.documents[i].count;
    PT_DCHECK(inputs[i].logits <= read.documents[i].count);
    for (int64_t row = end - inputs[i].logits; row < end; ++row) rows.push_back(row);
  }
  pass.rows = at::tensor(rows, at::kLong).to(device);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const nn::KvCache::Document& document = read.documents[i];
    if (inputs[i].variant == 0) continue;
    std::vector<nn::VariantRows>& all = pass.variants;
    if (!all.empty() && all.back().variant == inputs[i].variant &&
        all.back().begin + all.back().size == document.first)
      all.back().size += document.count;
    else
      all.push_back({document.first, document.count, inputs[i].variant});
  }
  pass.documents = std::move(read.documents);
  if (has_sources) {
    Stream encoded = make_stream(
        sources, [](int64_t) { return 0; }, tp, device);
    pass.batch.fields["input_ids"] = encoded.ids;
    pass.batch.layouts.push_back(std::move(encoded.layout));
    pass.sources = std::move(encoded.documents);
  }
  pass.batch.fields[has_sources ? "decoder_input_ids" : "input_ids"] = read.ids;
  pass.batch.layouts.push_back(std::move(read.layout));
  return pass;
}

} // namespace

Session::Session(parallelize::ModelView model, int64_t texts, bool fp8_cache)
    : model_(std::move(model)),
      schedule_(pipeline::lower(pipeline::one_pass(model_.places.rank_of_stage))),
      runtime_(parallelize::chunks_of(model_.model), model_.store, model_.places.channels,
               parallelize::boundaries_of(model_.model, model_.places, model_.device)),
      cache_(texts, fp8_cache), tokens_(static_cast<size_t>(texts)) {}

void Session::truncate(int64_t text, int64_t length) {
  cache_.truncate(text, length);
  tokens_[static_cast<size_t>(text)].resize(static_cast<size_t>(length));
}

void Session::adopt(int64_t text, std::span<const int64_t> tokens,
                    const nn::KvCache::Block& block) {
  PT_DCHECK(static_cast<int64_t>(tokens.size()) == kPage);
  cache_.adopt(text, block);
  std::vector<int64_t>& all = tokens_[static_cast<size_t>(text)];
  all.insert(all.end(), tokens.begin(), tokens.end());
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
    for (const std::span<const int64_t> tokens : {input.tokens, input.source}) {
      const int64_t bad = kernels::first_bad_id(tokens.data(), static_cast<int64_t>(tokens.size()),
                                                config.vocab_size);
      if (bad >= 0)
        raise<DataError>("token {} of the prompt is not in the model's vocabulary of {}\n  try: "
                         "tokenizer.path=FILE_OR_FOLDER with the tokenizer of the model",
                         tokens[static_cast<size_t>(bad)], config.vocab_size);
    }
  }
  const Pass pass =
      make_pass(inputs, cache_, has_sources(), model_.model.tensor_parallel(), model_.device);
  cache_.begin(pass.documents, pass.sources);
  nn::StepState state;
  nn::PassResults results;
  runtime_.run(schedule_, {pass.batch}, state,
               {.wanted = {.loss = false,
                           .logits = pass.rows.size(0) > 0,
                           .logit_rows = pass.rows,
                           .hidden = false},
                .results = &results,
                .cache = &cache_,
                .variant_rows = &pass.variants});
  cache_.end();
  for (const Input& input : inputs) {
    std::vector<int64_t>& text = tokens_[static_cast<size_t>(input.text)];
    text.insert(text.end(), input.tokens.begin(), input.tokens.end());
  }
  if (!has_logits() || pass.rows.size(0) == 0) return {};
  return results.at(models::kLogits).cpu();
}

} // namespace pentatron::generate
