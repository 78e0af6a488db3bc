/// Addresses that stand for the memory of a GPU: as many as are asked for, backed by pages only
/// where something is written. Nothing is ever given back but those pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pentatron::roofline {

/// A new range of addresses, aligned to 512 bytes, that reads as zeros.
void* reserve(size_t bytes);
/// The pages of a range that reserve() gave.
void give_back(void* p, size_t bytes);

bool in_device_memory(const void* p);

/// From now on the process crashes when it reads or writes such addresses, but for what happens
/// while a DeviceAccess lives: launches and copies.
void hide_device_memory();
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// The range of reserve() that an address lies in.
struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;
};
Range range_of(uintptr_t address);

/// Bytes of ranges that are not given back: now, and at most since the last call of reset_peak().
int64_t reserved_bytes();
int64_t peak_bytes();
void reset_peak();

/// Allocations that LibTorch would have asked the driver for (caching.h), since the start. What it
/// keeps for later is forgotten by empty_cache().
int64_t segments();
void empty_cache();

} // namespace pentatron::roofline
