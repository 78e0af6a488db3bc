/// A CUDA device without a GPU: tensors of `cuda:0` that have addresses and no content. Operators
/// of LibTorch on them compute shapes, are recorded (launches.h) and do nothing, but for copies of
/// few elements and operators on few whole numbers. Linked into a program, it is there;
/// libtorch_cuda must not be.
#pragma once

#include <cstdint>

namespace pentatron::roofline {

/// Operators of LibTorch on the device are recorded from now on, and the device can be used.
void open_device();

/// From now on the device has not come to anything yet when the host asks, as where the host is far
/// ahead. At first it has come to everything.
void set_far_behind(bool behind);

} // namespace pentatron::roofline
