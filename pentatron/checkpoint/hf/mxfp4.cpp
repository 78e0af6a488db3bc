#include "pentatron/checkpoint/hf/mxfp4.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "pentatron/checkpoint/source_facts.h"

namespace pentatron::checkpoint {

namespace {

constexpr int64_t kMxfp4Block = 32;
constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

} // namespace

at::Tensor dequantize_mxfp4(const SafeTensor& blocks, const SafeTensor& scales) {
  const int64_t count = scales.shape.at(0) * scales.shape.at(1) * scales.shape.at(2);
  const at::Tensor out =
      at::empty({scales.shape[0], scales.shape[1], scales.shape[2] * kMxfp4Block}, at::kBFloat16);
  auto* const values = out.mutable_data_ptr<at::BFloat16>();
  at::parallel_for(0, count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const auto exponent = static_cast<int>(scales.data[static_cast<size_t>(b)]) - 127;
      std::array<at::BFloat16, 16> table;
      for (size_t i = 0; i < table.size(); ++i) table[i] = std::ldexp(kValues[i], exponent);
      const std::byte* const codes = &blocks.data[static_cast<size_t>(b) * 16];
      for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
        const auto code = static_cast<unsigned>(codes[i]);
        values[b * kMxfp4Block + 2 * i] = table[code & 15U];
        values[b * kMxfp4Block + 2 * i + 1] = table[code >> 4U];
      }
    }
  });
  return out;
}

std::string mxfp4_misfit(const SafeTensor& blocks, const SafeTensor& scales,
                         const std::vector<int64_t>& shape) {
  for (const SafeTensor* const tensor : {&blocks, &scales})
    if (tensor->dtype != SafeDtype::kU8)
      return fmt::format("its {} are of type {} instead of U8",
                         tensor == &blocks ? "blocks" : "scales", name_of(tensor->dtype));
  if (shape.at(2) % kMxfp4Block != 0)
    return fmt::format("MXFP4 has blocks of {} numbers, which do not divide its {}", kMxfp4Block,
                       shape[2]);
  std::vector<int64_t> wanted = {shape[0], shape[1], shape[2] / kMxfp4Block};
  if (scales.shape != wanted)
    return fmt::format("its scales have shape {} instead of {}", shape_text(scales.shape),
                       shape_text(wanted));
  wanted.push_back(kMxfp4Block / 2);
  if (blocks.shape != wanted)
    return fmt::format("its blocks have shape {} instead of {}", shape_text(blocks.shape),
                       shape_text(wanted));
  return {};
}

} // namespace pentatron::checkpoint
