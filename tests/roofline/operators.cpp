#include "tests/roofline/operators.h"

#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "tests/roofline/launches.h"
#include "tests/roofline/memory.h"

namespace pentatron::roofline {

namespace {

constexpr int64_t kCopied = int64_t{1} << 20; // elements of copies that are really made

double bytes_of(const at::Tensor& x) {
  double elements = 1;
  for (int64_t d = 0; d < x.dim(); ++d)
    elements *= x.stride(d) == 0 && x.size(d) > 0 ? 1 : static_cast<double>(x.size(d));
  return elements * static_cast<double>(x.itemsize());
}

std::string text_of(const at::Tensor& x) {
  static const std::map<at::ScalarType, std::string> names = {
      {at::kBFloat16, "bf16"}, {at::kFloat, "fp32"}, {at::kDouble, "fp64"}, {at::kHalf, "fp16"}};
  const auto found = names.find(x.scalar_type());
  return fmt::format("[{}] {}", fmt::join(x.sizes(), ", "),
                     found == names.end() ? c10::toString(x.scalar_type()) : found->second);
}

/// An operator with its arguments by name.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : schema_(op.schema()) {
    const auto& arguments = schema_.arguments();
    const auto values = torch::jit::last(stack, arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      values_[arguments[i].name()] = values[i];
      const auto* const alias = arguments[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      each_tensor(values[i], [&](const at::Tensor& x) {
        if (!written)
          read.push_back(x);
        else if (arguments[i].kwarg_only() || writes_only())
          this->written.push_back(x);
        else {
          read.push_back(x);
          this->written.push_back(x);
        }
      });
    }
  }

  /// "mm" of aten::mm.dtype_out.
  std::string name() const {
    const std::string& full = schema_.name();
    return full.substr(full.find("::") + 2);
  }
  const c10::IValue& at(const std::string& argument) const { return values_.at(argument); }
  bool has(const std::string& argument) const { return values_.contains(argument); }

  template <class F> static void each_tensor(const c10::IValue& value, const F& f) {
    if (value.isTensor() && value.toTensor().defined()) f(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& x : value.toTensorVector()) f(x);
    if (value.isOptionalTensorList() || (value.isList() && !value.isTensorList()))
      for (const c10::IValue& one : value.toListRef())
        if (one.isTensor() && one.toTensor().defined()) f(one.toTensor());
  }

  std::vector<at::Tensor> read, written;

 private:
  /// In place, without reading what was there.
  bool writes_only() const {
    const std::string n = name();
    return n == "copy_" || n == "zero_" || n == "fill_" || n == "_index_put_impl_";
  }

  const c10::FunctionSchema& schema_;
  std::map<std::string, c10::IValue> values_;
};

/// Of the tensors on the device, each once.
double bytes_of_all(const std::vector<at::Tensor>& tensors) {
  std::set<std::pair<const void*, int64_t>> seen;
  double bytes = 0;
  for (const at::Tensor& x : tensors)
    if (x.is_cuda() && seen.emplace(x.const_data_ptr(), x.numel()).second) bytes += bytes_of(x);
  return bytes;
}

bool is_product(const std::string& name) {
  static const std::set<std::string> names = {"mm",    "addmm",  "addmm_",  "bmm", "mv",
                                              "addmv", "addmv_", "baddbmm", "dot", "addmm_dtype"};
  return names.contains(name);
}

double product_flops(const Call& call) {
  const at::Tensor& a = call.has("mat1")     ? call.at("mat1").toTensor()
                        : call.has("mat")    ? call.at("mat").toTensor()
                        : call.has("batch1") ? call.at("batch1").toTensor()
                                             : call.at("self").toTensor();
  const at::Tensor& b = call.has("mat2")     ? call.at("mat2").toTensor()
                        : call.has("batch2") ? call.at("batch2").toTensor()
                        : call.has("vec")    ? call.at("vec").toTensor()
                                             : call.at("tensor").toTensor();
  const int64_t columns = b.dim() == 1 ? 1 : b.size(-1);
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(columns);
}

/// A host copy of a small tensor of the device.
std::vector<int32_t> content(const at::Tensor& x) {
  const DeviceAccess access;
  const auto* const p = static_cast<const int32_t*>(x.const_data_ptr());
  return {p, p + x.numel()};
}

/// Pairs of a query and a key that it sees, over the documents of a call.
double visible_pairs(const Call& call) {
  const auto ends = [&](const char* short_name, const char* long_name) {
    return content(call.at(call.has(short_name) ? short_name : long_name).toTensor());
  };
  const std::vector<int32_t> q = ends("cum_seq_q", "cumulative_sequence_length_q"),
                             k = ends("cum_seq_k", "cumulative_sequence_length_k");
  const bool causal = call.at("is_causal").toBool();
  const auto limit = [&](const char* name) {
    const c10::IValue& value = call.at(name);
    return value.isNone() ? int64_t{-1} : value.toInt();
  };
  const int64_t left = limit("window_size_left"), right = causal ? 0 : limit("window_size_right");
  double pairs = 0;
  for (size_t i = 0; i + 1 < q.size(); ++i) {
    const int64_t queries = q[i + 1] - q[i], keys = k[i + 1] - k[i];
    for (int64_t at = 0; at < queries; ++at) {
      const int64_t own = at + keys - queries;
      const int64_t first = left < 0 ? 0 : std::max<int64_t>(0, own - left),
                    end = right < 0 ? keys : std::min(keys, own + right + 1);
      pairs += static_cast<double>(std::max<int64_t>(0, end - first));
    }
  }
  return pairs;
}

/// What FlashAttention-2's backward pass keeps in buffers of its own.
void add_attention_buffers(const Call& call, Launch& launch) {
  constexpr int64_t kMultiprocessors = 132;
  const at::Tensor &q = call.at("query").toTensor(), &k = call.at("key").toTensor();
  const auto documents = static_cast<int64_t>(content(call.at("cum_seq_q").toTensor()).size()) - 1;
  const int64_t heads = q.size(1), at_once = documents * heads;
  const auto parts = static_cast<double>((kMultiprocessors + at_once - 1) / at_once);
  const double dq = 4.0 * static_cast<double>(q.numel());
  launch.read += 2 * parts * dq; // added to, then rounded
  launch.written += 2 * parts * dq;
  launch.kernels = 4; // zeros, row sums, the pass, rounding
  if (heads != k.size(1)) {
    const double of_heads = 2.0 * 2 * static_cast<double>(q.numel());
    launch.written += of_heads;
    launch.read += of_heads;
    launch.kernels += 2;
  }
}

void record_call(const Call& call, const std::vector<at::Tensor>& results) {
  if (!recording()) return;
  Launch launch;
  launch.op = call.name();
  std::vector<at::Tensor> read = call.read, written = call.written;
  written.insert(written.end(), results.begin(), results.end());
  if (call.has("beta") && call.at("beta").isScalar() && call.at("beta").toScalar().equal(0.0) &&
      !read.empty())
    read.erase(read.begin());
  const auto elsewhere = [](const at::Tensor& x) { return !x.is_cuda() && x.numel() > 0; };
  const bool host_written = std::ranges::any_of(written, elsewhere);
  if (launch.op == "copy_" && (host_written || elsewhere(call.at("src").toTensor()))) {
    launch.kind = Kind::kTransfer;
    launch.waits = host_written && !call.at("non_blocking").toBool();
  }
  launch.read = bytes_of_all(read);
  launch.written = bytes_of_all(written);
  if (launch.read + launch.written == 0) return; // of no elements, or of the host
  std::vector<std::string> shapes;
  for (const at::Tensor& x : read) shapes.push_back(text_of(x));
  launch.shapes = fmt::format("{}", fmt::join(shapes, ", "));
  for (const at::Tensor& x : written) launch.shapes += " -> " + text_of(x);
  if (is_product(launch.op)) {
    launch.kind = Kind::kGemm;
    launch.flops = product_flops(call);
    launch.narrow = call.read.back().itemsize() == 2;
  }
  if (launch.op == "_flash_attention_forward" || launch.op == "_flash_attention_backward") {
    const bool backward = launch.op.ends_with("backward");
    launch.kind = Kind::kAttention;
    launch.narrow = true;
    const at::Tensor& q = call.at("query").toTensor();
    launch.flops =
        (backward ? 10 : 4) * visible_pairs(call) * static_cast<double>(q.size(1) * q.size(2));
    if (backward) add_attention_buffers(call, launch);
  }
  record(std::move(launch));
}

/// The tensor without content, for the shapes of results.
at::Tensor meta_of(const at::Tensor& x) {
  if (!x.defined() || x.is_meta()) return x;
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta));
}

c10::IValue meta_of(const c10::IValue& value) {
  if (value.isTensor()) return meta_of(value.toTensor());
  if (value.isDevice()) return c10::Device(at::kMeta);
  if (value.isTensorList()) {
    std::vector<at::Tensor> list;
    for (const at::Tensor& x : value.toTensorVector()) list.push_back(meta_of(x));
    return list;
  }
  return value;
}

/// Results, without content, of operators whose shapes LibTorch knows in Python alone; else empty.
torch::jit::Stack results_of(const Call& call) {
  const auto like = [&](const char* argument) {
    const at::Tensor x = call.at(argument).toTensor();
    return at::empty(x.sizes(), x.options().device(at::kMeta));
  };
  const at::TensorOptions meta(at::kMeta);
  if (call.name() == "_flash_attention_forward") {
    const at::Tensor& q = call.at("query").toTensor();
    return {like("query"), at::empty({q.size(1), q.size(0)}, meta.dtype(at::kFloat)),
            at::empty({2}, meta.dtype(at::kUInt64)), at::empty({}, meta.dtype(at::kUInt64)),
            at::empty({0}, q.options().device(at::kMeta))};
  }
  if (call.name() == "_flash_attention_backward")
    return {like("query"), like("key"), like("value")};
  if (call.name() == "mm" && call.has("out_dtype"))
    return {at::empty({call.at("self").toTensor().size(0), call.at("mat2").toTensor().size(1)},
                      meta.dtype(call.at("out_dtype").toScalarType()))};
  return {};
}

at::Tensor on_device(const at::Tensor& meta) {
  if (!meta.defined()) return meta;
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(at::kCUDA));
}

/// The bytes of a tensor of the device, as a tensor of the host.
at::Tensor on_host(const at::Tensor& x) {
  return x.is_cuda() ? at::from_blob(const_cast<void*>(x.const_data_ptr()), x.sizes(), x.strides(),
                                     x.options().device(at::kCPU))
                     : x;
}

at::Tensor alias(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                 int64_t offset) {
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(x.storage()), x.key_set(), x.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return result;
}

} // namespace

at::Tensor as_strided(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return alias(x, size, stride, offset.value_or(x.storage_offset()));
}

at::Tensor view(const at::Tensor& x, c10::IntArrayRef size) {
  const at::DimVector whole = at::infer_size_dv(size, x.numel());
  const auto stride = at::detail::computeStride(x.sizes(), x.strides(), whole);
  if (!stride) raise<ShapeError>("a view of a tensor whose strides do not allow it");
  return alias(x, whole, *stride, x.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return alias(x, size, stride, x.storage_offset());
}

at::Tensor& set_storage(at::Tensor& x, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  c10::TensorImpl* const impl = x.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, offset);
  return x;
}

at::Scalar read_scalar(const at::Tensor& x) {
  record({.kind = Kind::kTransfer,
          .op = "item",
          .shapes = text_of(x),
          .read = bytes_of(x),
          .waits = true});
  if (at::isFloatingType(x.scalar_type())) return 1.0;
  return int64_t{0};
}

at::Tensor nonzero(const at::Tensor& x) {
  at::Tensor rows = at::empty({x.numel(), x.dim()}, x.options().dtype(at::kLong));
  record({.kind = Kind::kTorch,
          .op = "nonzero",
          .shapes = text_of(x),
          .kernels = 4, // of CUB: counts, sums, places
          .read = 2 * bytes_of(x),
          .written = bytes_of(rows),
          .waits = true});
  return rows;
}

bool all_few_integers(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [](const at::Tensor& x) {
    return c10::isIntegralType(x.scalar_type(), /*includeBool=*/true) && x.numel() <= kCopied;
  });
}

/// Runs an operator on the bytes of its tensors, for its results on the host.
torch::jit::Stack run_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  torch::jit::Stack host;
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor() && value.toTensor().defined())
      host.emplace_back(on_host(value.toTensor()));
    else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& x : value.toTensorVector()) list.push_back(on_host(x));
      host.emplace_back(list);
    } else if (value.isDevice())
      host.emplace_back(c10::Device(at::kCPU));
    else
      host.push_back(value);
  }
  const DeviceAccess access;
  op.callBoxed(&host);
  return host;
}

void run_recorded(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const Call call(op, *stack);
  const size_t count = schema.arguments().size();
  if (!call.written.empty()) { // in place or into given tensors, which are the results
    record_call(call, {});
    if (call.name() == "copy_" && call.written[0].numel() <= kCopied) {
      const at::Tensor src = call.at("src").toTensor();
      const DeviceAccess access;
      on_host(call.written[0]).copy_(on_host(src));
    } else if (call.name() == "arange") { // into a tensor without elements yet
      const at::Tensor numbers = at::arange(call.at("start").toScalar(), call.at("end").toScalar(),
                                            call.at("step").toScalar(), at::kLong);
      const at::Tensor& out = call.written[0];
      const at::Tensor whole = at::empty({numbers.numel()}, out.options().dtype(out.scalar_type()));
      out.unsafeGetTensorImpl()->set_storage_keep_dtype(whole.storage());
      out.unsafeGetTensorImpl()->set_sizes_contiguous(whole.sizes());
      const DeviceAccess access;
      on_host(out).copy_(numbers);
    } else if (all_few_integers(call.written) &&
               (call.read.empty() || all_few_integers(call.read))) {
      run_on_host(op, *stack);
    }
    std::vector<c10::IValue> results;
    const auto values = torch::jit::last(*stack, count);
    for (size_t i = 0; i < count; ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && results.size() < schema.returns().size())
        results.push_back(values[i]);
    }
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
    return;
  }
  const bool computed = all_few_integers(call.read);
  torch::jit::Stack made = computed ? run_on_host(op, *stack) : results_of(call);
  if (made.empty()) {
    for (const c10::IValue& value : torch::jit::last(*stack, count)) made.push_back(meta_of(value));
    op.callBoxed(&made);
  }
  std::vector<at::Tensor> results;
  const auto keep = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    results.push_back(on_device(x));
    const DeviceAccess access;
    if (computed) on_host(results.back()).copy_(x);
    return results.back();
  };
  for (c10::IValue& value : made) {
    if (value.isTensor()) {
      value = keep(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& x : value.toTensorVector()) list.push_back(keep(x));
      value = list;
    }
  }
  record_call(call, results);
  torch::jit::drop(*stack, count);
  for (c10::IValue& value : made) stack->push_back(std::move(value));
}

} // namespace pentatron::roofline
