/// A GPU stream for copies that overlap with computation.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pentatron::nn {

class SideStream {
 public:
  explicit SideStream(c10::Device device)
      : stream_(c10::impl::VirtualGuardImpl(device.type())
                    .getStreamFromGlobalPool(device, /*isHighPriority=*/false)) {}

  /// The one that computes.
  c10::Stream computing() const {
    return c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device());
  }
  /// Runs `fn` after the work that has been queued so far.
  template <class Fn> void after_computing(Fn&& fn, c10::Event& ended) const {
    c10::Event computed(stream_.device_type());
    computed.record(computing());
    computed.block(stream_);
    const c10::StreamGuard guard(stream_);
    fn();
    ended.record(stream_);
  }

 private:
  c10::Stream stream_;
};

} // namespace pentatron::nn
