#include "pentatron/checkpoint/gguf/quants.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/gguf/quantize_k.h"

namespace pentatron::checkpoint {

namespace {

using Bytes = const uint8_t*;

float half_at(Bytes p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return float_of_half(bits);
}

/// a + b with a = x y rounded to float first. Contracting both into one rounding would change
/// bits, and compilers do that where the machine has the instruction.
float rounded(float product) {
  asm("" : "+m"(product));
  return product;
}

void dequantize_q8_0(Bytes block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

void dequantize_q4_0(Bytes block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 0xF) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void dequantize_q4_1(Bytes block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = rounded(d * static_cast<float>(block[4 + i] & 0xF)) + m;
    out[i + 16] = rounded(d * static_cast<float>(block[4 + i] >> 4)) + m;
  }
}

/// Bit `i` of the fifth bits of a block of 32, as 16.
int fifth_bit(Bytes bits, int i) {
  return (bits[i / 8] >> (i % 8) & 1) << 4;
}

void dequantize_q5_0(Bytes block, float* out) {
  const float d = half_at(block);
  const Bytes bits = block + 2, q = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((q[i] & 0xF) | fifth_bit(bits, i)) - 16);
    out[i + 16] = d * static_cast<float>(((q[i] >> 4) | fifth_bit(bits, i + 16)) - 16);
  }
}

void dequantize_q5_1(Bytes block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  const Bytes bits = block + 4, q = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = rounded(d * static_cast<float>((q[i] & 0xF) | fifth_bit(bits, i))) + m;
    out[i + 16] = rounded(d * static_cast<float>((q[i] >> 4) | fifth_bit(bits, i + 16))) + m;
  }
}

constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

void dequantize_iq4_nl(Bytes block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kUneven[block[2 + i] & 0xF]);
    out[i + 16] = d * static_cast<float>(kUneven[block[2 + i] >> 4]);
  }
}

void dequantize_iq4_xs(Bytes block, float* out) {
  const float d = half_at(block);
  const int high = block[2] | block[3] << 8;
  const Bytes low = block + 4, q = block + 8;
  for (int j = 0; j < 8; ++j) {
    const int scale = (low[j / 2] >> (4 * (j % 2)) & 0xF) | (high >> (2 * j) & 3) << 4;
    const float of_block = d * static_cast<float>(scale - 32);
    for (int i = 0; i < 16; ++i) {
      const uint8_t pair = q[j * 16 + i];
      out[j * 32 + i] = of_block * static_cast<float>(kUneven[pair & 0xF]);
      out[j * 32 + i + 16] = of_block * static_cast<float>(kUneven[pair >> 4]);
    }
  }
}

/// Two bits of element `e` of a block of 256, whose halves have 32 bytes of four elements each.
int two_bits(Bytes q, int e) {
  return q[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
}

void dequantize_q2_k(Bytes block, float* out) {
  const Bytes scales = block, q = block + 16;
  const float d = half_at(block + 80), m = half_at(block + 82);
  for (int e = 0; e < 256; ++e) {
    const uint8_t both = scales[e / 16];
    const float scale = d * static_cast<float>(both & 0xF);
    const float min = rounded(m * static_cast<float>(both >> 4));
    out[e] = rounded(scale * static_cast<float>(two_bits(q, e))) - min;
  }
}

void dequantize_q3_k(Bytes block, float* out) {
  const Bytes third = block, q = block + 32, scales = block + 96;
  const float d = half_at(block + 108);
  for (int e = 0; e < 256; ++e) {
    const int j = e / 16;
    const int low = j < 8 ? scales[j] & 0xF : scales[j - 8] >> 4;
    const int scale = low | (scales[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
    const bool set = (third[e % 32] >> (e / 32) & 1) != 0;
    out[e] =
        d * static_cast<float>(scale - 32) * static_cast<float>(two_bits(q, e) - (set ? 0 : 4));
  }
}

/// Half of a block's scale, as ggml has it: a power of two for every exponent byte.
float half_scale(uint8_t exponent) {
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent
                                           : static_cast<uint32_t>(exponent - 1) << 23);
}

void dequantize_mxfp4(Bytes block, float* out) {
  constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float d = half_scale(block[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kDoubled[block[1 + i] & 0xF]);
    out[i + 16] = d * static_cast<float>(kDoubled[block[1 + i] >> 4]);
  }
}

/// Scale and minimum `j` of 8, 6 bits each, in 12 bytes.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(Bytes packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 0xF) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6)
                                                                                        << 4};
}

/// Of Q4_K, and of Q5_K with its fifth bits.
void dequantize_scaled(Bytes block, const uint8_t* fifth, Bytes q, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(block + 4, j);
    const float scale = d * static_cast<float>(s.scale);
    const float min = rounded(m * static_cast<float>(s.min));
    for (int i = 0; i < 32; ++i) {
      const uint8_t pair = q[j / 2 * 32 + i];
      int value = j % 2 == 0 ? pair & 0xF : pair >> 4;
      if (fifth != nullptr) value |= (fifth[i] >> j & 1) << 4;
      out[j * 32 + i] = rounded(scale * static_cast<float>(value)) - min;
    }
  }
}

void dequantize_q4_k(Bytes block, float* out) {
  dequantize_scaled(block, nullptr, block + 16, out);
}

void dequantize_q5_k(Bytes block, float* out) {
  dequantize_scaled(block, block + 16, block + 48, out);
}

void dequantize_q6_k(Bytes block, float* out) {
  const Bytes low = block, high = block + 128, scales = block + 192;
  const float d = half_at(block + 208);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, part = e % 128 / 32, i = e % 32;
    const uint8_t four = low[half * 64 + part % 2 * 32 + i];
    const uint8_t two = high[half * 32 + i];
    const int value = ((part < 2 ? four & 0xF : four >> 4) | (two >> (2 * part) & 3) << 4) - 32;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[e / 16]));
    out[e] = scale * static_cast<float>(value);
  }
}

void quantize_q8_0(const float* values, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float d = largest / 127.0f;
  const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  const uint16_t bits = half_of_float(d);
  std::memcpy(block, &bits, 2);
  for (int i = 0; i < 32; ++i)
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

using Dequantize = void (*)(Bytes, float*);
Dequantize dequantizer(GgmlType type) {
  switch (type) {
  case GgmlType::kQ8_0:
    return dequantize_q8_0;
  case GgmlType::kQ4_0:
    return dequantize_q4_0;
  case GgmlType::kQ4_1:
    return dequantize_q4_1;
  case GgmlType::kQ5_0:
    return dequantize_q5_0;
  case GgmlType::kQ5_1:
    return dequantize_q5_1;
  case GgmlType::kQ2_K:
    return dequantize_q2_k;
  case GgmlType::kQ3_K:
    return dequantize_q3_k;
  case GgmlType::kQ5_K:
    return dequantize_q5_k;
  case GgmlType::kIQ4_NL:
    return dequantize_iq4_nl;
  case GgmlType::kIQ4_XS:
    return dequantize_iq4_xs;
  case GgmlType::kMXFP4:
    return dequantize_mxfp4;
  case GgmlType::kQ4_K:
    return dequantize_q4_k;
  case GgmlType::kQ6_K:
    return dequantize_q6_k;
  default:
    return nullptr;
  }
}

} // namespace

float float_of_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u)
    return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // The exponent is rebiased by a multiplication, which also makes subnormals exact.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

uint16_t half_of_float(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) { // NaN stays one where its upper bits are zero
    const uint32_t payload = magnitude >> 13 & 0x3FFu;
    return static_cast<uint16_t>(sign | 0x7C00u | (payload == 0 ? 1u : payload));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) { // subnormal: adding 0.5 leaves the rounded bits at the bottom
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rebased = magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | rebased >> 13);
}

uint16_t bfloat_of_float(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

bool can_dequantize(GgmlType type) {
  return can_quantize(type) || dequantizer(type) != nullptr;
}

bool can_quantize(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16 ||
         type == GgmlType::kQ8_0 || type == GgmlType::kQ4_K || type == GgmlType::kQ6_K;
}

void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  PT_DCHECK(can_dequantize(type));
  const GgmlBlock& block = *ggml_block(type);
  PT_DCHECK(blocks.size() == values.size() / block.elements * block.bytes &&
            values.size() % block.elements == 0);
  const auto* in = reinterpret_cast<Bytes>(blocks.data());
  if (type == GgmlType::kF32) {
    if (!blocks.empty()) std::memcpy(values.data(), in, blocks.size());
  } else if (type == GgmlType::kF16) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = half_at(in + 2 * i);
  } else if (type == GgmlType::kBF16) {
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, in + 2 * i, 2);
      values[i] = std::bit_cast<float>(uint32_t{bits} << 16);
    }
  } else {
    const Dequantize one = dequantizer(type);
    for (size_t i = 0; i < values.size() / block.elements; ++i)
      one(in + i * block.bytes, values.data() + i * block.elements);
  }
}

void quantize(GgmlType type, std::span<const float> values, std::span<std::byte> blocks) {
  PT_DCHECK(can_quantize(type));
  const GgmlBlock& block = *ggml_block(type);
  PT_DCHECK(blocks.size() == values.size() / block.elements * block.bytes &&
            values.size() % block.elements == 0);
  auto* out = reinterpret_cast<uint8_t*>(blocks.data());
  if (type == GgmlType::kF32) {
    if (!values.empty()) std::memcpy(out, values.data(), blocks.size());
  } else if (type == GgmlType::kQ8_0) {
    for (size_t i = 0; i < values.size() / 32; ++i)
      quantize_q8_0(values.data() + 32 * i, out + 34 * i);
  } else if (type == GgmlType::kQ4_K || type == GgmlType::kQ6_K) {
    const auto one = type == GgmlType::kQ4_K ? quantize_q4_k : quantize_q6_k;
    for (size_t i = 0; i < values.size() / block.elements; ++i)
      one(values.data() + i * block.elements, out + i * block.bytes);
  } else {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits =
          type == GgmlType::kF16 ? half_of_float(values[i]) : bfloat_of_float(values[i]);
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }
}

size_t first_lost(GgmlType type, std::span<const float> values) {
  const auto lost = [type](float value) {
    switch (type) {
    case GgmlType::kF16:
      return std::isfinite(value) && (half_of_float(value) & 0x7FFFu) == 0x7C00u;
    case GgmlType::kBF16:
      return std::isfinite(value) && (bfloat_of_float(value) & 0x7FFFu) == 0x7F80u;
    case GgmlType::kQ8_0:
      return !std::isfinite(value) ||
             (half_of_float(std::fabs(value) / 127.0f) & 0x7FFFu) == 0x7C00u;
    case GgmlType::kQ4_K:
    case GgmlType::kQ6_K: // what fp16 scales of at least 1 / 63 of the values can hold
      return !(std::fabs(value) < 65504.0F * 31);
    default:
      return false;
    }
  };
  return static_cast<size_t>(std::ranges::find_if(values, lost) - values.begin());
}

} // namespace pentatron::checkpoint
