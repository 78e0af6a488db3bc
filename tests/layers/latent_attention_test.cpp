// What latent attention keeps in generation, and its FLOPs.
#include "pentatron/layers/latent_attention.h"

#include "pentatron/nn/record.h"
#include "tests/layers/layer_cases.h"

namespace pentatron::layers {
namespace {

constexpr int64_t kRank = 6, kRotary = 4;

/// One text, read in parts of these sizes; null: without a cache.
at::Tensor read_in_parts(Layer& model, const std::vector<int64_t>& parts, nn::KvCache* cache) {
  std::vector<at::Tensor> out;
  int64_t begin = 0;
  for (const int64_t count : parts) {
    test::Pass pass(nn::SequenceLayout::dense(1, count, {0}, at::kCPU));
    pass.layout.positions += begin;
    pass.ctx.cache = cache;
    if (cache != nullptr) cache->begin({{.sequence = 0, .first = 0, .count = count}});
    const nn::NoAutograd guard;
    out.push_back(
        model.forward({randn({kSequence, kHidden}, 1).narrow(0, begin, count), {}}, pass.ctx));
    if (cache != nullptr) cache->end();
    begin += count;
  }
  return at::cat(out);
}

TEST(KeptLatents, GiveWhatAWholePassGives) {
  for (const LayerCase& c : latent_cases()) {
    for (const int ranks : {1, 2}) {
      test::run_ranks(ranks, [&](const comm::Group& tp) {
        Layer model(c, tp);
        const at::Tensor expected = read_in_parts(model, {kSequence}, nullptr);
        nn::KvCache cache(1);
        expect_close(read_in_parts(model, {2, 1, 3}, &cache), expected, kLayerExact);
        // Of every token one latent and one rotary key, on every rank.
        const int64_t rank = c.options.attention.latent->rank;
        EXPECT_EQ(rank, kRank);
        EXPECT_EQ(cache.bytes(), nn::KvCache::kPage * (rank + kRotary) * 8);
      });
    }
  }
}

TEST(LatentAttentionCost, FlopsAreTheFormulaOfMegatron) {
  // Facts of the field, without the norms: 6 T (q + r (h + a (p + e)) + h d + a e h) with
  // q = r_q (h + a (p + d)), or h a (p + d); core 3 S (a (p + d) + a e) for causal squares S.
  const double t = 300, h = 64, a = 8, rq = 24, r = 16, p = 12, d = 6, e = 10, squares = 3 * 1e4;
  AttentionOptions o{.hidden = 64, .heads = 8, .head_size = 18};
  for (const bool compressed : {true, false}) {
    o.latent = LatentSizes{.query_rank = compressed ? 24 : 0,
                           .rank = 16,
                           .plain_size = 12,
                           .rotary_size = 6,
                           .value_size = 10};
    const nn::Cost cost = LatentAttention::cost(o, {.tokens = 300, .squared_lengths = 30000});
    const double q = compressed ? rq * (h + a * (p + d)) : h * a * (p + d);
    EXPECT_EQ(cost.total_flops(), 6 * t * (q + r * (h + a * (p + e)) + h * d + a * e * h) +
                                      3 * squares * (a * (p + d) + a * e));
  }
}

} // namespace
} // namespace pentatron::layers
