/// Float blocks of 256 elements as Q4_K and Q6_K, with the choice of scales that llama.cpp makes
/// (without an importance matrix), so that the bytes are the same.
///
/// Q4_K: 8 groups of 32, value = scale q - min with q in 0..15; scales and minima of 6 bits. Q6_K:
/// 16 groups of 16, value = scale q with q in -32..31; scales of 8 bits. Each group's scale (and
/// minimum) is the best of about 20 tried in weighted least squares: the weight of an element is
/// |x| plus the group's root mean square (Q4_K), or x^2 (Q6_K).
/// Source: https://github.com/ggml-org/ggml, the format's description in ggml-quants.
#pragma once

#include <cstdint>

namespace pentatron::checkpoint {

/// 256 finite values to 144 bytes.
void quantize_q4_k(const float* values, uint8_t* block);
/// 256 finite values to 210 bytes.
void quantize_q6_k(const float* values, uint8_t* block);

} // namespace pentatron::checkpoint
