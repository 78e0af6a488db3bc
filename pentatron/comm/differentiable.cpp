#include "pentatron/comm/differentiable.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/adjoint.h"
#include "pentatron/comm/collectives.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

namespace pentatron::comm {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// What a Function keeps for its backward: an IValue holds it as a capsule.
struct Kept : torch::CustomClassHolder {
  Group group;
  int64_t dim = 0, other_dim = 0;
  std::vector<int64_t> send_rows, recv_rows;
};

void keep(AutogradContext* ctx, c10::intrusive_ptr<Kept> kept) {
  ctx->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
}

const Kept& kept(AutogradContext* ctx) {
  return static_cast<const Kept&>(*ctx->saved_data["kept"].toCapsule());
}

c10::intrusive_ptr<Kept> make_kept(const Group& group, int64_t dim = 0) {
  auto result = c10::make_intrusive<Kept>();
  result->group = group;
  result->dim = dim;
  return result;
}

/// A copy: a view would keep the whole tensor alive and forbid writing to the part.
at::Tensor own_part(const at::Tensor& x, int64_t dim, const Group& group) {
  const int64_t extent = x.size(dim) / group.size();
  return x.narrow(dim, group.rank() * extent, extent).clone(at::MemoryFormat::Contiguous);
}

struct CopyTo : Function<CopyTo> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group) {
    keep(ctx, make_kept(group));
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {reduce_from(dy[0], kept(ctx).group), {}};
  }
};

struct ReduceFrom : Function<ReduceFrom> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group) {
    keep(ctx, make_kept(group));
    return all_reduce(x, ReduceOp::kSum, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {copy_to(dy[0], kept(ctx).group), {}};
  }
};

struct GatherFrom : Function<GatherFrom> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim,
                            const Group& group) {
    keep(ctx, make_kept(group, dim));
    return all_gather(x, dim, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {scatter_to(dy[0], kept(ctx).dim, kept(ctx).group), {}, {}};
  }
};

struct ScatterTo : Function<ScatterTo> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim,
                            const Group& group) {
    keep(ctx, make_kept(group, dim));
    return own_part(x, dim, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {gather_from(dy[0], kept(ctx).dim, kept(ctx).group), {}, {}};
  }
};

struct AllGather : Function<AllGather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim,
                            const Group& group) {
    keep(ctx, make_kept(group, dim));
    return all_gather(x, dim, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {reduce_scatter(dy[0], kept(ctx).dim, kept(ctx).group), {}, {}};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim,
                            const Group& group) {
    keep(ctx, make_kept(group, dim));
    return reduce_scatter(x, dim, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {all_gather(dy[0], kept(ctx).dim, kept(ctx).group), {}, {}};
  }
};

struct AllToAllRows : Function<AllToAllRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::vector<int64_t>& send_rows,
                            const std::vector<int64_t>& recv_rows, const Group& group) {
    auto kept = make_kept(group);
    kept->send_rows = send_rows;
    kept->recv_rows = recv_rows;
    keep(ctx, std::move(kept));
    return all_to_all_rows(x, send_rows, recv_rows, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const Kept& of = kept(ctx);
    return {all_to_all_rows(dy[0], of.recv_rows, of.send_rows, of.group), {}, {}, {}};
  }
};

struct AllToAllDims : Function<AllToAllDims> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t split_dim,
                            int64_t concat_dim, const Group& group) {
    auto kept = make_kept(group, split_dim);
    kept->other_dim = concat_dim;
    keep(ctx, std::move(kept));
    return all_to_all(x, split_dim, concat_dim, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    const Kept& of = kept(ctx);
    return {all_to_all(dy[0], of.other_dim, of.dim, of.group), {}, {}, {}};
  }
};

int64_t wrapped_dim(const char* call, const at::Tensor& x, int64_t dim) {
  const int64_t wrapped = dim < 0 ? dim + x.dim() : dim;
  if (wrapped < 0 || wrapped >= x.dim())
    raise<ShapeError>("{} along dim {} of a tensor [{}], which has no such dim", call, dim,
                      fmt::join(x.sizes(), ", "));
  return wrapped;
}

} // namespace

at::Tensor copy_to(const at::Tensor& x, const Group& group) {
  return group.size() == 1 ? x : CopyTo::apply(x, group);
}

at::Tensor reduce_from(const at::Tensor& x, const Group& group) {
  return group.size() == 1 ? x : ReduceFrom::apply(x, group);
}

at::Tensor gather_from(const at::Tensor& x, int64_t dim, const Group& group) {
  dim = wrapped_dim("gather_from", x, dim);
  return group.size() == 1 ? x : GatherFrom::apply(x, dim, group);
}

at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const Group& group) {
  dim = wrapped_dim("scatter_to", x, dim);
  if (x.size(dim) % group.size() != 0)
    raise<ShapeError>(
        "scatter_to of a tensor [{}]: dim {} does not divide by the {} ranks of group {}",
        fmt::join(x.sizes(), ", "), dim, group.size(), group.name());
  return group.size() == 1 ? x : ScatterTo::apply(x, dim, group);
}

namespace adjoint {

at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group) {
  return AllGather::apply(x, dim, group);
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group) {
  return ReduceScatter::apply(x, dim, group);
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group) {
  return AllToAllRows::apply(x, send_rows, recv_rows, group);
}

at::Tensor all_to_all_dims(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                           const Group& group) {
  return AllToAllDims::apply(x, split_dim, concat_dim, group);
}

} // namespace adjoint

} // namespace pentatron::comm
