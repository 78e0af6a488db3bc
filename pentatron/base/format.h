/// Formats numbers, durations and sizes for people; clocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pentatron {

/// "1 document", "2 documents"; `many` is the plural if it does not end in s.
std::string counted(int64_t count, std::string_view one, std::string_view many = {});
/// The noun alone, for counts that are written in another way.
std::string noun_for(int64_t count, std::string_view one, std::string_view many = {});

/// "45.3ms", "0.45s", "12.3s", "2m 03s", "1h 02m 03s", "3d 04h 05m". Negative and non-finite
/// durations are
/// "?".
std::string format_duration(double seconds);

/// Binary units: "512 B", "1.5 KiB", "3.2 GiB".
std::string format_bytes(double bytes);
/// "500MB", "1.5 GiB", "4096": K, M, G and T are thousands with B or without, and 1024s with iB; in
/// any case of letters. None for anything else, and for more than 64 bits count.
std::optional<uint64_t> parse_bytes(std::string_view text);

/// Three digits with K, M, B, T: "999", "1.23K", "124M", "6.74B". For counts of parameters and
/// tokens.
std::string format_count(double count);

/// Three digits with an SI prefix: "3.21 T" for 3.21e12; followed by a unit: format_si(x) +
/// "FLOP/s".
std::string format_si(double value);

/// Thousands apart: "1,234,567".
std::string format_grouped(int64_t value);

/// Seconds left after `done` of `total` took `elapsed_s`; negative while nothing is done.
double eta_s(double done, double total, double elapsed_s);

/// Seconds of a clock that never jumps; only differences have a meaning.
double monotonic_s();

/// "2026-01-31T12:34:56Z", now.
std::string utc_timestamp();

} // namespace pentatron
