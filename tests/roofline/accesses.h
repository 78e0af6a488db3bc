/// Counts the bytes that pentatron's CUDA kernels move, by running some of their blocks.
#pragma once

namespace pentatron::roofline {

/// From now on launches of pentatron's kernels are recorded (launches.h) and run on the CPU: all of
/// their blocks where they are few, else a sample.
void watch_kernels();

} // namespace pentatron::roofline
