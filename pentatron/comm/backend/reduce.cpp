#include "pentatron/comm/backend/reduce.h"

#include "pentatron/base/error.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace pentatron::comm {

namespace {

constexpr int64_t kBlock = 1024; // the accumulator stays in the first-level cache

template <class Acc> Acc larger(Acc a, Acc b) {
  return (b > a || b != b) ? b : a; // a NaN in `a` stays: no comparison with it is true
}

template <class T, class Acc>
void reduce_typed(const std::vector<const void*>& ins, const std::vector<void*>& outs,
                  int64_t begin, int64_t end, ReduceOp op) {
  Acc acc[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t n = std::min(kBlock, end - start);
    const T* first = static_cast<const T*>(ins[0]) + start;
    for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<Acc>(first[i]);
    for (size_t r = 1; r < ins.size(); ++r) {
      const T* x = static_cast<const T*>(ins[r]) + start;
      if (op == ReduceOp::kSum)
        for (int64_t i = 0; i < n; ++i) acc[i] += static_cast<Acc>(x[i]);
      else
        for (int64_t i = 0; i < n; ++i) acc[i] = larger(acc[i], static_cast<Acc>(x[i]));
    }
    for (void* out : outs) {
      T* y = static_cast<T*>(out) + start;
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(acc[i]);
    }
  }
}

using Reduce = void (*)(const std::vector<const void*>&, const std::vector<void*>&, int64_t,
                        int64_t, ReduceOp);

Reduce find(at::ScalarType dtype) {
  switch (dtype) {
  case at::kDouble:
    return reduce_typed<double, double>;
  case at::kFloat:
    return reduce_typed<float, float>;
  case at::kBFloat16:
    return reduce_typed<c10::BFloat16, float>;
  case at::kHalf:
    return reduce_typed<c10::Half, float>;
  case at::kLong:
    return reduce_typed<int64_t, int64_t>;
  case at::kInt:
    return reduce_typed<int32_t, int64_t>;
  case at::kShort:
    return reduce_typed<int16_t, int32_t>;
  case at::kChar:
    return reduce_typed<int8_t, int32_t>;
  case at::kByte:
    return reduce_typed<uint8_t, int32_t>;
  case at::kBool:
    return reduce_typed<bool, int32_t>;
  default:
    return nullptr;
  }
}

} // namespace

void check_reducible(at::ScalarType dtype, ReduceOp op) {
  if (!find(dtype))
    raise<CommError>(
        "{} of {} tensors is not supported\n  try: a real floating-point or integer type",
        op == ReduceOp::kSum ? "a sum" : "a maximum", c10::toString(dtype));
}

void reduce_slice(const std::vector<at::Tensor>& ins, const std::vector<at::Tensor>& outs,
                  int64_t begin, int64_t end, ReduceOp op) {
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (const at::Tensor& in : ins) sources.push_back(in.const_data_ptr());
  for (const at::Tensor& out : outs) destinations.push_back(out.mutable_data_ptr());
  find(ins[0].scalar_type())(sources, destinations, begin, end, op);
}

void reduce_buffers(at::ScalarType dtype, const std::vector<const void*>& sources,
                    const std::vector<void*>& destinations, int64_t numel, ReduceOp op) {
  find(dtype)(sources, destinations, 0, numel, op);
}

} // namespace pentatron::comm
