// Rows of the GEMM entry of MKL; included by common/foreach_isa.h.

/// dst = [old or old16] [+ bias]; null pointers are left out.
inline void begin_row(float* dst, const float* old, const bf16* old16, const float* bias,
                      int64_t n) {
  for_vectors(n, [&](int64_t j, auto lanes) {
    VF x = old16 != nullptr ? load(old16 + j, lanes) : old != nullptr ? load(old + j, lanes) : VF{};
    if (bias != nullptr) x += load(bias + j, lanes);
    store(dst + j, x, lanes);
  });
}

inline void round_row(bf16* dst, const float* src, int64_t n) {
  for_vectors(n, [&](int64_t j, auto lanes) { store(dst + j, load(src + j, lanes), lanes); });
}
