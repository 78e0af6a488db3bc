/// Parameters whose matrices are fused, stacked and split over tensor ranks.
#pragma once

#include <map>
#include <string>

#include <ATen/ATen.h>

#include "pentatron/nn/param.h"

namespace pentatron::test {

/// Fused attention and MLP weights, experts, a padded table, a padded matrix, a bias, a norm; of
/// one rank of `tp`.
struct Fused {
  explicit Fused(nn::AxisPosition tp = {}, at::ScalarType dtype = at::kDouble) {
    const nn::Coordinates where = {{"tp", tp}};
    const std::map<std::string, nn::Placement> columns = {{"tp", nn::Placement::shard(0)}},
                                               rows = {{"tp", nn::Placement::shard(1)}};
    params.add({.name = "qkv",
                .shape = {16, 6},
                .parts = {{"q", 4, 2}, {"k", 2, 2, true}, {"v", 2, 2, true}},
                .placements = columns},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "fc1",
                .shape = {16, 6},
                .parts = {{"gate", 8, 1}, {"up", 8, 1}},
                .placements = columns},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "fc2", .shape = {6, 8}, .placements = rows}, nn::Init::normal(1), dtype,
               where);
    params.add({.name = "router", .shape = {3, 6}}, nn::Init::normal(1), dtype, where);
    params.add({.name = "experts",
                .shape = {3, 8, 6},
                .parts = {{"gate", 4, 1}, {"up", 4, 1}},
                .parts_dim = 1,
                .stacked_dims = 1,
                .placements = {{"tp", nn::Placement::shard(1)}}},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "down",
                .shape = {3, 6, 4},
                .stacked_dims = 1,
                .placements = {{"tp", nn::Placement::shard(2)}}},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "table",
                .shape = {14, 6},
                .shard_multiple = 4,
                .table = true,
                .placements = columns},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "vocab_b", .shape = {14, 3}, .shard_multiple = 4, .placements = columns},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "qkv_bias",
                .shape = {16},
                .parts = {{"q", 4, 2}, {"k", 2, 2, true}, {"v", 2, 2, true}},
                .placements = columns},
               nn::Init::normal(1), dtype, where);
    params.add({.name = "norm", .shape = {6}}, nn::Init::normal(1), dtype, where);
  }
  nn::ParamList params;
};

/// This rank's part of a gradient of the true shape.
inline void load_gradient(nn::Param& p, const at::Tensor& global) {
  for (const nn::LocalBox& box : nn::local_boxes(p.spec(), p.where())) {
    at::Tensor from = global, to = p.main_grad();
    for (size_t d = 0; d < box.size.size(); ++d) {
      from = from.narrow(static_cast<int64_t>(d), box.global[d], box.size[d]);
      to = to.narrow(static_cast<int64_t>(d), box.local[d], box.size[d]);
    }
    to.copy_(from);
  }
}

} // namespace pentatron::test
