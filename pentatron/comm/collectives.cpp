#include "pentatron/comm/collectives.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/adjoint.h"
#include "pentatron/comm/backend.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace pentatron::comm {

namespace {

bool wants_grad(const at::Tensor& x) {
  return c10::GradMode::is_enabled() && x.requires_grad();
}

std::string text(const at::Tensor& x) {
  return fmt::format("[{}]", fmt::join(x.sizes(), ", "));
}

int64_t checked_dim(const char* call, const at::Tensor& x, int64_t dim) {
  const int64_t wrapped = dim < 0 ? dim + x.dim() : dim;
  if (wrapped < 0 || wrapped >= x.dim())
    raise<ShapeError>("{} along dim {} of a tensor {}, which has no such dim", call, dim, text(x));
  return wrapped;
}

int64_t part_of(const char* call, const at::Tensor& x, int64_t dim, const Group& group) {
  const int64_t extent = x.size(dim);
  if (extent % group.size() != 0)
    raise<ShapeError>("{} of a tensor {}: dim {} is not divisible by the {} ranks of group {}",
                      call, text(x), dim, group.size(), group.name());
  return extent / group.size();
}

void check_peer(const char* call, int peer, const Group& group) {
  if (peer < 0 || peer >= group.size())
    raise<CommError>("{} names rank {} of group {}, which has {} ranks", call, peer, group.name(),
                     group.size());
}

void check_contiguous(const char* call, const at::Tensor& x) {
  if (!x.is_contiguous())
    raise<ShapeError>("{} takes a contiguous tensor, this {} has strides [{}]", call, text(x),
                      fmt::join(x.strides(), ", "));
}

void check_no_grad(const char* call, const at::Tensor& x) {
  if (wants_grad(x))
    raise<Error>("{} of a tensor that requires grad would lose its gradient\n  try: copy_to or "
                 "reduce_from of "
                 "comm/differentiable.h, or detach()",
                 call);
}

/// A write that torch did not see: what autograd saved of `x` is stale now.
void written(const at::Tensor& x) {
  if (!x.is_inference()) x.unsafeGetTensorImpl()->bump_version();
}

std::vector<at::Tensor> parts(const at::Tensor& x, int64_t dim, int count) {
  std::vector<at::Tensor> result;
  const int64_t extent = x.size(dim) / count;
  for (int r = 0; r < count; ++r) result.push_back(x.narrow(dim, r * extent, extent));
  return result;
}

int64_t sum(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

void check_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                const std::vector<int64_t>& recv_rows, const Group& group) {
  checked_dim("all_to_all_rows", x, 0);
  const auto size = static_cast<size_t>(group.size());
  if (send_rows.size() != size || recv_rows.size() != size || sum(send_rows) != x.size(0))
    raise<ShapeError>(
        "all_to_all_rows of a tensor {} with send_rows [{}] and recv_rows [{}] on the {} "
        "ranks of group {}",
        text(x), fmt::join(send_rows, ", "), fmt::join(recv_rows, ", "), size, group.name());
  for (const auto* rows : {&send_rows, &recv_rows})
    for (const int64_t count : *rows)
      if (count < 0)
        raise<ShapeError>("all_to_all_rows on group {} with {} rows", group.name(), count);
  if (size == 1 && sum(recv_rows) != x.size(0))
    raise<ShapeError>("all_to_all_rows of one rank sends {} rows and expects {}", x.size(0),
                      sum(recv_rows));
}

void check_parts(const char* call, const at::Tensor& whole, const at::Tensor& part,
                 const std::vector<int64_t>& rows, const Group& group) {
  checked_dim(call, whole, 0);
  check_contiguous(call, whole);
  check_contiguous(call, part);
  std::vector<int64_t> shape = whole.sizes().vec();
  const bool fits =
      std::ssize(rows) == group.size() && std::ranges::min(rows) >= 0 && sum(rows) == whole.size(0);
  if (fits) shape[0] = rows[static_cast<size_t>(group.rank())];
  if (!fits || part.sizes() != at::IntArrayRef(shape) || part.scalar_type() != whole.scalar_type())
    raise<ShapeError>("{} of {} {} and {} {} in [{}] rows of the {} ranks of group {}", call,
                      c10::toString(whole.scalar_type()), text(whole),
                      c10::toString(part.scalar_type()), text(part), fmt::join(rows, ", "),
                      group.size(), group.name());
}

at::Tensor empty_with(const at::Tensor& x, int64_t dim, int64_t extent) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[dim] = extent;
  return at::empty(shape, x.options());
}

} // namespace

at::Tensor all_reduce(const at::Tensor& x, ReduceOp op, const Group& group) {
  check_no_grad("all_reduce", x);
  if (group.size() == 1) return x;
  const at::Tensor in = x.detach().contiguous();
  at::Tensor out = at::empty(in.sizes(), in.options());
  group.backend().all_reduce(out, in, op).wait();
  return out;
}

void all_reduce_(const at::Tensor& x, ReduceOp op, const Group& group) {
  check_no_grad("all_reduce_", x);
  if (group.size() == 1) return;
  if (x.is_contiguous()) {
    all_reduce_start_(x, op, group).wait();
  } else {
    const at::NoGradGuard no_grad;
    x.copy_(all_reduce(x, op, group));
  }
}

Work all_reduce_start_(const at::Tensor& x, ReduceOp op, const Group& group) {
  check_no_grad("all_reduce_start_", x);
  check_contiguous("all_reduce_start_", x);
  if (group.size() == 1) return {};
  written(x);
  return group.backend().all_reduce(x.detach(), x.detach(), op);
}

at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group) {
  dim = checked_dim("all_gather", x, dim);
  if (group.size() == 1) return x;
  if (wants_grad(x)) return adjoint::all_gather(x, dim, group);
  at::Tensor out = empty_with(x, dim, x.size(dim) * group.size());
  all_gather_into(out, x, dim, group).wait();
  return out;
}

Work all_gather_into(const at::Tensor& out, const at::Tensor& x, int64_t dim, const Group& group) {
  check_no_grad("all_gather_into", x);
  dim = checked_dim("all_gather_into", x, dim);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[dim] *= group.size();
  if (out.sizes() != at::IntArrayRef(shape) || out.scalar_type() != x.scalar_type())
    raise<ShapeError>("all_gather_into of {} {} over the {} ranks of group {} into {} {}: the "
                      "output must be {} [{}]",
                      c10::toString(x.scalar_type()), text(x), group.size(), group.name(),
                      c10::toString(out.scalar_type()), text(out), c10::toString(x.scalar_type()),
                      fmt::join(shape, ", "));
  const at::NoGradGuard no_grad;
  if (group.size() == 1) {
    if (out.data_ptr() != x.data_ptr()) out.copy_(x);
    return {};
  }
  written(out);
  return group.backend().all_gather(parts(out.detach(), dim, group.size()),
                                    x.detach().contiguous());
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group) {
  dim = checked_dim("reduce_scatter", x, dim);
  const int64_t extent = part_of("reduce_scatter", x, dim, group);
  if (group.size() == 1) return x;
  if (wants_grad(x)) return adjoint::reduce_scatter(x, dim, group);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> ins = parts(x.detach(), dim, group.size());
  for (at::Tensor& in : ins) in = in.contiguous();
  at::Tensor out = empty_with(x, dim, extent);
  group.backend().reduce_scatter(out, ins, ReduceOp::kSum).wait();
  return out;
}

Work reduce_scatter_into(const at::Tensor& out, const at::Tensor& x, const Group& group) {
  check_no_grad("reduce_scatter_into", x);
  checked_dim("reduce_scatter_into", x, 0);
  check_contiguous("reduce_scatter_into", x);
  check_contiguous("reduce_scatter_into", out);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = part_of("reduce_scatter_into", x, 0, group);
  if (out.sizes() != at::IntArrayRef(shape) || out.scalar_type() != x.scalar_type())
    raise<ShapeError>("reduce_scatter_into of {} {} over the {} ranks of group {} into {} {}: the "
                      "output must be {} [{}]",
                      c10::toString(x.scalar_type()), text(x), group.size(), group.name(),
                      c10::toString(out.scalar_type()), text(out), c10::toString(x.scalar_type()),
                      fmt::join(shape, ", "));
  const at::NoGradGuard no_grad;
  if (group.size() == 1) {
    if (out.data_ptr() != x.data_ptr()) out.copy_(x);
    return {};
  }
  written(out);
  return group.backend().reduce_scatter(out.detach(), parts(x.detach(), 0, group.size()),
                                        ReduceOp::kSum);
}

Work all_gather_rows_into(const at::Tensor& whole, const at::Tensor& part,
                          const std::vector<int64_t>& rows, const Group& group) {
  check_no_grad("all_gather_rows_into", part);
  check_parts("all_gather_rows_into", whole, part, rows, group);
  const at::NoGradGuard no_grad;
  if (group.size() == 1) {
    if (whole.data_ptr() != part.data_ptr()) whole.copy_(part);
    return {};
  }
  written(whole);
  return group.backend().all_gather(whole.detach().split_with_sizes(rows), part.detach());
}

Work reduce_scatter_rows_into(const at::Tensor& part, const at::Tensor& whole,
                              const std::vector<int64_t>& rows, const Group& group) {
  check_no_grad("reduce_scatter_rows_into", whole);
  check_parts("reduce_scatter_rows_into", whole, part, rows, group);
  const at::NoGradGuard no_grad;
  if (group.size() == 1) {
    if (whole.data_ptr() != part.data_ptr()) part.copy_(whole);
    return {};
  }
  written(part);
  return group.backend().reduce_scatter(part.detach(), whole.detach().split_with_sizes(rows),
                                        ReduceOp::kSum);
}

void broadcast_(const at::Tensor& x, int root, const Group& group) {
  check_no_grad("broadcast_", x);
  check_peer("broadcast_", root, group);
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor dense = x.detach().contiguous();
  group.backend().broadcast(dense, root).wait();
  if (x.is_contiguous())
    written(x);
  else if (group.rank() != root)
    x.copy_(dense);
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group) {
  check_rows(x, send_rows, recv_rows, group);
  if (group.size() == 1) return x;
  if (wants_grad(x)) return adjoint::all_to_all_rows(x, send_rows, recv_rows, group);
  const at::NoGradGuard no_grad;
  at::Tensor out = empty_with(x, 0, sum(recv_rows));
  all_to_all_rows_into(out, x.detach(), send_rows, recv_rows, group).wait();
  return out;
}

Work all_to_all_rows_into(const at::Tensor& out, const at::Tensor& x,
                          const std::vector<int64_t>& send_rows,
                          const std::vector<int64_t>& recv_rows, const Group& group) {
  check_no_grad("all_to_all_rows_into", x);
  check_rows(x, send_rows, recv_rows, group);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = sum(recv_rows);
  if (out.sizes() != at::IntArrayRef(shape) || out.scalar_type() != x.scalar_type())
    raise<ShapeError>("all_to_all_rows_into of {} {} into {} {}: the output must be {} [{}]",
                      c10::toString(x.scalar_type()), text(x), c10::toString(out.scalar_type()),
                      text(out), c10::toString(x.scalar_type()), fmt::join(shape, ", "));
  check_contiguous("all_to_all_rows_into", out);
  const at::NoGradGuard no_grad;
  if (group.size() == 1) {
    if (out.data_ptr() != x.data_ptr()) out.copy_(x);
    return {};
  }
  written(out);
  std::vector<at::Tensor> ins, outs;
  int64_t from = 0, to = 0;
  for (size_t r = 0; r < send_rows.size(); from += send_rows[r], to += recv_rows[r], ++r) {
    ins.push_back(x.detach().narrow(0, from, send_rows[r]));
    outs.push_back(out.detach().narrow(0, to, recv_rows[r]));
  }
  return group.backend().all_to_all(outs, ins);
}

at::Tensor all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                      const Group& group) {
  split_dim = checked_dim("all_to_all", x, split_dim);
  concat_dim = checked_dim("all_to_all", x, concat_dim);
  const int64_t extent = part_of("all_to_all", x, split_dim, group);
  if (group.size() == 1) return x;
  if (wants_grad(x)) return adjoint::all_to_all_dims(x, split_dim, concat_dim, group);
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[split_dim] = extent;
  shape[concat_dim] *= group.size();
  at::Tensor out = at::empty(shape, x.options());
  group.backend()
      .all_to_all(parts(out, concat_dim, group.size()), parts(x.detach(), split_dim, group.size()))
      .wait();
  return out;
}

void send(const at::Tensor& x, int peer, const Group& group) {
  TransferBatch(group).send(x.detach().contiguous(), peer).start().wait();
}

void recv(const at::Tensor& x, int peer, const Group& group) {
  const at::Tensor dense = x.is_contiguous() ? x.detach() : at::empty(x.sizes(), x.options());
  TransferBatch(group).recv(dense, peer).start().wait();
  if (x.is_contiguous()) {
    written(x);
  } else {
    const at::NoGradGuard no_grad;
    x.copy_(dense);
  }
}

struct TransferBatch::Impl {
  Group group;
  std::vector<Transfer> transfers;

  void add(Transfer::Kind kind, const at::Tensor& x, int peer) {
    const char* call = kind == Transfer::Kind::kSend ? "send" : "recv";
    check_peer(call, peer, group);
    if (peer == group.rank())
      raise<CommError>("{} of rank {} of group {} with itself", call, peer, group.name());
    check_contiguous(call, x);
    transfers.push_back({kind, x.detach(), peer});
  }
};

TransferBatch::TransferBatch(Group group)
    : impl_(std::make_unique<Impl>(Impl{std::move(group), {}})) {}
TransferBatch::TransferBatch(TransferBatch&&) noexcept = default;
TransferBatch& TransferBatch::operator=(TransferBatch&&) noexcept = default;
TransferBatch::~TransferBatch() = default;

TransferBatch& TransferBatch::send(const at::Tensor& x, int peer) {
  impl_->add(Transfer::Kind::kSend, x, peer);
  return *this;
}

TransferBatch& TransferBatch::recv(const at::Tensor& x, int peer) {
  impl_->add(Transfer::Kind::kRecv, x, peer);
  return *this;
}

Work TransferBatch::start() {
  const std::vector<Transfer> transfers = std::exchange(impl_->transfers, {});
  if (transfers.empty()) return {};
  return impl_->group.backend().send_recv(transfers);
}

void barrier(const Group& group) {
  if (group.size() > 1) group.backend().barrier().wait();
}

} // namespace pentatron::comm
