/// Copies between host and device. Everything of a training step that needs a device's numbers on
/// the host reads them here, so that such waits can be counted; structure.host_reads refuses other
/// ways. docs/gpu.md lists who reads, and when.
///
/// While a CUDA graph is recorded (layer_graphs.h), all of these throw ConfigError: a graph would
/// repeat a copy, and not with new numbers.
#pragma once

#include <experimental/source_location> // clang 14 of the fuzz targets has no other
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace pentatron::nn {

using SourceLocation = std::experimental::source_location;

/// The tensor in the host's memory, contiguous: itself if it is there already. Of a device, waits
/// until that has computed it. Counts as one read wherever the tensor is.
at::Tensor host_values(const at::Tensor& x,
                       const SourceLocation& where = SourceLocation::current());

/// The same in two parts: the copy sets off at once, and only values() waits, so that the device
/// computes on between the two.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& x, const SourceLocation& where = SourceLocation::current());
  at::Tensor values() const;

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;
};

/// A tensor of one element; the same as host_values().
template <class T>
T host_value(const at::Tensor& x, const SourceLocation& where = SourceLocation::current()) {
  return host_values(x, where).template item<T>();
}

/// The rows of a mask [n] that are true [r] int64, on its device. A read too: the host must know
/// how many there are.
at::Tensor rows_where(const at::Tensor& mask,
                      const SourceLocation& where = SourceLocation::current());

/// A tensor of the host on `device`; one that is there already. The copy goes through pinned memory
/// that LibTorch keeps for the next ones, and the host does not wait for it: the tensor may be
/// changed afterwards.
at::Tensor to_device(const at::Tensor& x, at::Device device);

/// Called at each read, in any thread; null: nothing is. For tests.
using HostReadHook = void (*)(const SourceLocation& where);
void set_host_read_hook(HostReadHook hook);

} // namespace pentatron::nn
