// What travels between context-parallel ranks: latents in the place of keys and values, and under a
// window only what other ranks see. Results are those of keys and values that all ranks get.
#include "pentatron/layers/context_attention.h"

#include "pentatron/comm/recorder.h"
#include "pentatron/nn/saved.h"
#include "pentatron/parallel/context/zigzag.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

namespace pentatron::layers {
namespace {

using test::expect_close;
using test::randn;

constexpr test::Tolerance kExact{1e-11, 1e-12};

/// Bytes that this rank sends, receives in transfers, or adds to collectives while `body` runs.
int64_t bytes_moved(const comm::Group& cp, const std::function<void(const comm::Group&)>& body) {
  auto recorder = std::make_shared<comm::Recorder>();
  recorder->enable(true);
  body(comm::recorded(cp, recorder));
  int64_t bytes = 0;
  for (const comm::RecordedOperation& operation : recorder->take()) bytes += operation.bytes;
  return bytes;
}

struct Result {
  at::Tensor out;
  std::vector<at::Tensor> gradients;
};

class Travelling : public testing::TestWithParam<bool> {}; ///< whether in a ring

TEST_P(Travelling, LatentsGiveWhatTheirKeysAndValuesGive) {
  const LatentSizes sizes{.rank = 6, .plain_size = 3, .rotary_size = 2, .value_size = 4};
  const int64_t heads = 4, tokens = 24, key = 5;
  for (const int64_t window : {0, 3}) {
    test::run_ranks(3, [&, window = window](const comm::Group& cp) {
      const nn::SequenceLayout layout = parallel::cut_samples(
          nn::SequenceLayout::dense(1, tokens, {7}, at::kCPU), cp.rank(), cp.size());
      const auto own = [&](const at::Tensor& x) {
        return parallel::own_tokens(x, layout).detach().requires_grad_(true);
      };
      const at::Tensor all_q = randn({tokens, heads, key}, 1),
                       all_latents = randn({tokens, 1, 8}, 2),
                       dout = parallel::own_tokens(randn({tokens, heads * 4}, 3), layout);
      const auto run = [&](bool travelling, int64_t& bytes) {
        test::Params params;
        nn::Param& weight = params.add("kv_b", randn({heads * 7, 6}, 4));
        const LatentKeys keys{.weight = &weight, .sizes = sizes, .heads = heads};
        const CoreAttentionOptions options{.window = window};
        test::Pass pass(layout);
        pass.ctx.training = true;
        const at::Tensor q = own(all_q), latents = own(all_latents);
        Result r;
        bytes = bytes_moved(cp, [&](const comm::Group& group) {
          const parallel::ContextWay way{.heads = {}, .blocks = group, .ring = GetParam()};
          EXPECT_TRUE(latents_travel(keys, way));
          if (travelling) {
            r.out = context_attention(q, latents, keys, options, way, pass.ctx);
          } else {
            const at::Tensor w = weight.value().view({heads, 7, 6}),
                             kv =
                                 at::einsum("tr,nfr->tnf", {latents.squeeze(1).narrow(1, 0, 6), w});
            const at::Tensor k =
                at::cat({kv.narrow(2, 0, 3), latents.narrow(2, 6, 2).expand({-1, heads, 2})}, 2);
            r.out = context_attention({q, k, kv.narrow(2, 3, 4)}, options, way, pass.ctx);
          }
          r.out.backward(dout);
        });
        r.gradients = {q.grad(), latents.grad()};
        if (travelling) {
          EXPECT_EQ(weight.outstanding_uses(), 0);
          r.gradients.push_back(weight.main_grad());
        }
        return r;
      };
      int64_t of_latents = 0, of_keys = 0;
      const Result actual = run(true, of_latents), expected = run(false, of_keys);
      expect_close(actual.out, expected.out, kExact);
      expect_close(actual.gradients[0], expected.gradients[0], kExact);
      expect_close(actual.gradients[1], expected.gradients[1], kExact);
      EXPECT_EQ(of_latents * heads * (key + 4), of_keys * 8); // numbers of a token
    });
  }
}

TEST_P(Travelling, TheWeightsGradientIsThatOfOneRank) {
  const LatentSizes sizes{.rank = 6, .plain_size = 3, .rotary_size = 2, .value_size = 4};
  const int64_t heads = 4, tokens = 25;
  const at::Tensor q = randn({tokens, heads, 5}, 1), latents = randn({tokens, 1, 8}, 2),
                   dout = randn({tokens, heads * 4}, 3), w = randn({heads * 7, 6}, 4);
  // One rank, in LibTorch.
  const at::Tensor leaf = w.clone().requires_grad_(true);
  const at::Tensor kv = at::einsum("tr,nfr->ntf",
                                   {latents.squeeze(1).narrow(1, 0, 6), leaf.view({heads, 7, 6})}),
                   k = at::cat({kv.narrow(2, 0, 3),
                                latents.squeeze(1).narrow(1, 6, 2).expand({heads, -1, 2})},
                               2);
  at::Tensor scores = q.transpose(0, 1).matmul(k.transpose(1, 2)) / std::sqrt(5.0);
  scores = scores.masked_fill(at::ones({tokens, tokens}, at::kBool).triu(1), -INFINITY);
  const at::Tensor expected =
      at::softmax(scores, 2).matmul(kv.narrow(2, 3, 4)).transpose(0, 1).reshape({tokens, -1});
  expected.backward(dout);
  const at::Tensor sum = at::zeros_like(w);
  std::mutex mutex;
  test::run_ranks(3, [&](const comm::Group& cp) {
    const nn::SequenceLayout layout = parallel::cut_samples(
        nn::SequenceLayout::dense(1, tokens, {7}, at::kCPU), cp.rank(), cp.size());
    test::Params params;
    nn::Param& weight = params.add("kv_b", w);
    const LatentKeys keys{.weight = &weight, .sizes = sizes, .heads = heads};
    test::Pass pass(layout);
    const auto own = [&](const at::Tensor& x) {
      return parallel::own_tokens(x, layout).detach().requires_grad_(true);
    };
    const parallel::ContextWay way{.heads = {}, .blocks = cp, .ring = GetParam()};
    const CoreAttentionOptions options{.scale = 1 / std::sqrt(5.0)};
    const at::Tensor out = context_attention(own(q), own(latents), keys, options, way, pass.ctx);
    out.backward(parallel::own_tokens(dout, layout).clone());
    expect_close(out.detach(), parallel::own_tokens(expected.detach(), layout), kExact);
    const std::lock_guard lock(mutex);
    sum.add_(weight.main_grad());
  });
  expect_close(sum, leaf.grad(), kExact);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Travelling, testing::Bool(),
                         [](const auto& info) { return info.param ? "ring" : "gathered"; });

/// A window over two chunks at most: two chunks of each of few ranks, there and back.
TEST(Windows, KeysThatNobodySeesAreNotSent) {
  const int64_t tokens = 64, heads = 2, d = 4;
  const at::Tensor q = randn({tokens, heads, d}, 1), k = randn({tokens, heads, d}, 2),
                   v = randn({tokens, heads, d}, 3), dout = randn({tokens, heads * d}, 4);
  test::run_ranks(4, [&](const comm::Group& cp) {
    const nn::SequenceLayout layout = parallel::cut_samples(
        nn::SequenceLayout::dense(1, tokens, {7}, at::kCPU), cp.rank(), cp.size());
    const auto own = [&](const at::Tensor& x) {
      return parallel::own_tokens(x, layout).detach().requires_grad_(true);
    };
    const auto run = [&](bool ring, int64_t window, int64_t& bytes) {
      test::Pass pass(layout);
      pass.ctx.training = true;
      const AttentionOperands x{own(q), own(k), own(v)};
      Result r;
      bytes = bytes_moved(cp, [&](const comm::Group& group) {
        r.out = context_attention(x, {.window = window},
                                  {.heads = {}, .blocks = group, .ring = ring}, pass.ctx);
        r.out.backward(parallel::own_tokens(dout, layout).clone());
      });
      r.gradients = {x.q.grad(), x.k.grad(), x.v.grad()};
      return r;
    };
    int64_t straight = 0, round = 0, other = 0;
    const Result actual = run(true, 5, straight), expected = run(false, 5, other);
    run(true, 0, round);
    expect_close(actual.out, expected.out, kExact);
    for (size_t i = 0; i < 3; ++i) expect_close(actual.gradients[i], expected.gradients[i], kExact);
    // Chunks of 8 tokens. A ring sends and gets 16 tokens 3 times forward, 3 times backward and 4
    // times as gradients; here ranks 0 and 3 send and get one chunk, the others two, three times.
    const int64_t token = 2 * heads * d * static_cast<int64_t>(sizeof(double));
    EXPECT_EQ(round, 2 * 10 * 16 * token);
    const int64_t chunks = cp.rank() == 0 || cp.rank() == 3 ? 1 : 2;
    EXPECT_EQ(straight, 2 * 3 * chunks * 8 * token);
  });
}

} // namespace
} // namespace pentatron::layers
