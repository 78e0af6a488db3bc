/// Tensors on a device whose ranks exchange them through the memory of the host.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "pentatron/comm/backend.h"

namespace pentatron::comm {

/// Carries tensors on `device` by copies of them, which `host` carries; other tensors go to `host`
/// as they are. Inputs are copied when an operation starts, which waits for the current stream;
/// outputs at its wait(), on the stream that is current then; those of a Work that is dropped are
/// not. The sums have the order and precision of `host`.
std::shared_ptr<Backend> staged(std::shared_ptr<Backend> host, at::Device device);

} // namespace pentatron::comm
