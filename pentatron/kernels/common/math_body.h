// Functions of fp32 vectors; included inside a SIMD body. Relative errors hold where the result is
// a normal number; NaN gives NaN.

/// e^x for x <= 88, relative error below 2e-7; 0 below -104. x = n ln 2 + r, and Cephes' polynomial
/// of expf for |r| <= ln 2 / 2.
inline VF exp(VF x) {
  x = max(broadcast(-104.0f), x); // x second: a NaN passes
  const VF n = round_int(x * 1.44269504f);
  VF r =
      fma(n, broadcast(-0.693359375f), x); // ln 2 in two parts; the product with the first is exact
  r = fma(n, broadcast(2.12194440e-4f), r);
  VF p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  return scale_exponent(p, n);
}

inline VF absolute(VF x) {
  return as_float(as_int(x) & 0x7FFFFFFF);
}

/// Relative error below 1e-6.
inline VF tanh(VF x) {
  const VF a = absolute(x), e = exp(-2.0f * a), s = x * x;
  // 1 - e cancels near 0, where the series is exact enough.
  const VF series =
      a *
      (1.0f + s * (-0.333333333f + s * (0.133333333f + s * (-0.0539682540f + s * 0.0218694885f))));
  const VF size = a < 0.3f ? series : (1.0f - e) / (1.0f + e);
  return x < 0 ? -size : size;
}

/// A cumulative distribution at x and at -x; neither suffers from cancellation.
struct Tails {
  VF at;
  VF opposite;
};

/// The logistic distribution: 1 / (1 + e^-x).
inline Tails sigmoid(VF x) {
  const VF e = exp(-absolute(x));
  const VF large = 1.0f / (1.0f + e), small = e * large;
  return {x < 0 ? small : large, x < 0 ? large : small};
}

struct Normal {
  VF cumulative; ///< Phi(x)
  VF density;
};

/// The standard normal distribution. Phi(-a) = e^(-a^2/2) t P(t) with t = 1 / (1 + 0.27 a), P a
/// minimax fit (2.4e-8) on [0, 15].
inline Normal normal(VF x) {
  VF a = absolute(x);
  a = a > 15.0f ? broadcast(15.0f) : a;
  const VF square = a * a;
  const VF lost = fma(a, a, -square); // what rounding took from the square matters in the far tail
  const VF gauss = exp(square * -0.5f) * fma(lost, broadcast(-0.5f), broadcast(1.0f));
  const VF t = 1.0f / fma(a, broadcast(0.27f), broadcast(1.0f));
  VF p = broadcast(0.0289957675f);
  p = fma(p, t, broadcast(-0.126659824f));
  p = fma(p, t, broadcast(0.170158271f));
  p = fma(p, t, broadcast(-0.0696528636f));
  p = fma(p, t, broadcast(0.108143898f));
  p = fma(p, t, broadcast(0.071907827f));
  p = fma(p, t, broadcast(0.101848672f));
  p = fma(p, t, broadcast(0.107537259f));
  p = fma(p, t, broadcast(0.107721004f));
  const VF tail = gauss * t * p;
  return {x < 0 ? tail : 1.0f - tail, gauss * 0.398942280f};
}
