/// exp of a vector of floats: relative error below 2e-7, 0 below -104, NaN for NaN; for x <= 88.
/// Included once for each instruction set, inside its target region and with the namespace
/// PENTATRON_ISA. Method: x = n ln 2 + r with ln 2 in two parts, polynomial of degree 7 on |r| <=
/// ln 2 / 2 (coefficients: Cephes expf).

namespace pentatron::kernels::PENTATRON_ISA {

inline F32 exp(F32 x) {
  const auto c = [](float value) { return splat<F32>(value); };
  x = max(c(-105.0f), x); // x second: a NaN passes
  const F32 n = round_to_int(x * c(1.44269504088896341f));
  F32 r = fma(n, c(-0.693359375f), x);
  r = fma(n, c(2.12194440e-4f), r);
  F32 y = c(1.9875691500e-4f);
  y = fma(y, r, c(1.3981999507e-3f));
  y = fma(y, r, c(8.3334519073e-3f));
  y = fma(y, r, c(4.1665795894e-2f));
  y = fma(y, r, c(1.6666665459e-1f));
  y = fma(y, r, c(5.0000001201e-1f));
  y = fma(y, r * r, r) + c(1.0f);
  return scale_by_power(y, n);
}

} // namespace pentatron::kernels::PENTATRON_ISA
