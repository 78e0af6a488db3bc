// Included once per instruction set by quantize_simd.cpp. The steps of formats.h, a vector at a
// time.

#include "pentatron/kernels/common/philox_body.h"

typedef int8_t Bytes __attribute__((vector_size(PT_LANES)));

/// Constants of a code, broadcast by the compiler where they are used.
struct Code {
  explicit Code(const CodeFormat& f)
      : mantissa(f.mantissa), least((f.min_exponent() + 127) << 23), shift((23 - f.mantissa) << 23),
        offset((127 - f.bias) << f.mantissa), step(power_of_two(-f.mantissa)), largest(f.largest),
        steps(power_of_two(f.mantissa - f.min_exponent())),
        smallest(power_of_two(f.min_exponent())), sign_shift(f.sign == 0x80 ? 24 : 28), nan(f.nan),
        has_nan(f.has_nan) {}
  int mantissa, least, shift, offset;
  float step, largest, steps, smallest;
  int sign_shift, nan;
  bool has_nan;
};

inline VF rounded_to(const Code& f, VF x) {
  const VI sign = as_int(x) & static_cast<int>(0x80000000u);
  const VF magnitude = as_float(as_int(x) ^ sign);
  const VF size = magnitude <= f.largest ? magnitude : broadcast(f.largest); // NaN, too
  const VI exponent = as_int(size) & 0x7F800000;
  const VF shift = as_float((exponent > f.least ? exponent : VI{} + f.least) + f.shift);
  const VF number = as_float(as_int((size + shift) - shift) | sign);
  if (f.has_nan) return magnitude != magnitude ? x : number;
  return magnitude != magnitude ? broadcast(f.largest) : number;
}

/// `uniform` in (0, 1) decides between the two numbers around x.
inline VF rounded_stochastically(const Code& f, VF x, VF uniform) {
  const VF size = x < 0 ? -x : x;
  const VI inside = size < f.largest;
  const VF within = inside ? size : VF{};
  const VI exponent = as_int(within) & 0x7F800000;
  const VF step = as_float(exponent > f.least ? exponent : VI{} + f.least) * f.step;
  const VF ratio = within / step;
  const VF below = __builtin_convertvector(__builtin_convertvector(ratio, VI), VF);
  const VF result = (below + (ratio - below > uniform ? VF{} + 1.0f : VF{})) * step;
  return inside ? (x < 0 ? -result : result) : rounded_to(f, x);
}

/// The random bits of neighbouring columns, a vector of Philox blocks at a time.
constexpr int64_t kPiece = 8 * kLanes;
class RandomBits {
 public:
  RandomBits(const Stochastic* s, int64_t cols) : s_(s), cols_(cols) {
    if (s == nullptr || s->col_ids == nullptr) return;
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t id = s->col_ids[col], first = s->col_ids[col / 8 * 8];
      eights_ = eights_ && first % 8 == 0 && id == first + col % 8;
    }
  }
  bool wanted() const { return s_ != nullptr; }

  /// Of the columns from `col`, a multiple of kPiece, to the end of the piece or of the tensor.
  void draw(int64_t row, int64_t col, uint16_t* bits) const {
    const int64_t cols = cols_ - col < kPiece ? cols_ - col : kPiece;
    if (!eights_) {
      for (int64_t i = 0; i < cols; ++i)
        bits[i] = static_cast<uint16_t>(random_bits_of(*s_, row, col + i));
      return;
    }
    VU low{}, high{};
    for (int64_t lane = 0; lane < (cols + 7) / 8; ++lane) {
      const int64_t c = col + 8 * lane;
      const auto block = static_cast<uint64_t>(s_->col_ids != nullptr ? s_->col_ids[c] : c) / 8;
      low[lane] = static_cast<uint32_t>(block);
      high[lane] = static_cast<uint32_t>(block >> 32);
    }
    const auto r = static_cast<uint64_t>(s_->row_ids != nullptr ? s_->row_ids[row] : row);
    const PhiloxLanes drawn = philox4x32(
        {{VU{} + static_cast<uint32_t>(r), VU{} + static_cast<uint32_t>(r >> 32), low, high}},
        s_->key);
    uint32_t words[4][kLanes];
    std::memcpy(words, drawn.word, sizeof words);
    for (int64_t lane = 0; lane < kLanes; ++lane)
      for (int64_t w = 0; w < 4; ++w) {
        bits[8 * lane + 2 * w] = static_cast<uint16_t>(words[w][lane]);
        bits[8 * lane + 2 * w + 1] = static_cast<uint16_t>(words[w][lane] >> 16);
      }
  }

 private:
  const Stochastic* s_;
  int64_t cols_;
  bool eights_ = true; ///< whether columns share blocks as without col_ids
};

/// Bits to uniform numbers, in a piece; those behind the end of a part are not used.
inline VF uniform_of(const uint16_t* bits) {
  VI wide;
#if PT_LANES == 16
  wide = (VI)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits)));
#else
  wide = (VI)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
#endif
  return (__builtin_convertvector(wide, VF) + 0.5f) * 0x1p-16f;
}

/// The codes of numbers of the format, one a lane.
inline VI codes_of(const Code& f, VF number) {
  const VI bits = as_int(number), size = bits & 0x7FFFFFFF;
  const VI sign = (VI)((VU)bits >> 31) << (31 - f.sign_shift);
  const VI normal = (size >> (23 - f.mantissa)) - f.offset;
  const VI steps = as_int(as_float(size) * f.steps + 0x1p23f) & 0xFF;
  const VI code = (as_float(size) < f.smallest ? steps : normal) | sign;
  return number != number ? VI{} + f.nan : code;
}

inline void store_codes(uint8_t* p, VI codes, Full) {
  const Bytes bytes = __builtin_convertvector(codes, Bytes);
  std::memcpy(p, &bytes, sizeof bytes);
}
inline void store_codes(uint8_t* p, VI codes, Part lanes) {
  const Bytes bytes = __builtin_convertvector(codes, Bytes);
  std::memcpy(p, &bytes, static_cast<size_t>(lanes.count));
}

/// The codes of two columns into one byte; an odd last column is alone.
inline void pack(uint8_t* to, const uint8_t* codes, int64_t cols) {
  for (int64_t c = 0; c + 1 < cols; c += 2)
    to[c / 2] = static_cast<uint8_t>(codes[c] | codes[c + 1] << 4);
  if (cols % 2 != 0) to[cols / 2] = codes[cols - 1];
}

/// The bits of the piece that was asked for last: blocks of a row follow each other.
struct DrawnPiece {
  const RandomBits& random;
  int64_t row = -1, col = -1;
  uint16_t bits[kPiece + kLanes];

  const uint16_t* at(int64_t r, int64_t c) {
    const int64_t begin = c / kPiece * kPiece;
    if (r != row || begin != col) random.draw(r, begin, bits);
    row = r;
    col = begin;
    return bits + (c - begin);
  }
};

/// One row of a block, or of the tensor. Blocks are parts of a piece, or whole pieces.
template <class T, class V, class E, class D>
void quantize_row(const Quantize& a, const Code& f, bool packed, DrawnPiece& random, int64_t row,
                  int64_t col, int64_t cols, E&& encode, D&& decode) {
  const T* x = static_cast<const T*>(a.x) + row * a.cols + col;
  V* values = a.values == nullptr ? nullptr : static_cast<V*>(a.values) + row * a.cols + col;
  for (int64_t begin = 0; begin < cols; begin += kPiece) {
    const int64_t n = cols - begin < kPiece ? cols - begin : kPiece;
    const uint16_t* bits = random.random.wanted() ? random.at(row, col + begin) : nullptr;
    uint8_t unpacked[kPiece];
    uint8_t* codes = packed               ? unpacked
                     : a.codes == nullptr ? nullptr
                                          : a.codes + row * a.cols + col + begin;
    for_vectors(n, [&](int64_t i, auto lanes) {
      const VF scaled = load(x + begin + i, lanes) * encode;
      const VF number = bits == nullptr ? rounded_to(f, scaled)
                                        : rounded_stochastically(f, scaled, uniform_of(bits + i));
      if (values != nullptr) store(values + begin + i, number * decode, lanes);
      if (codes != nullptr && a.codes != nullptr)
        store_codes(codes + i, codes_of(f, number), lanes);
    });
    if (packed && a.codes != nullptr)
      pack(a.codes + row * ((a.cols + 1) / 2) + (col + begin) / 2, unpacked, n);
  }
}

inline VF absolute_of(VF x) {
  return as_float(as_int(x) & 0x7FFFFFFF);
}

template <class T> VF sizes(const T* x, int64_t cols, VF most) {
  for_vectors(cols,
              [&](int64_t i, auto lanes) { most = max(absolute_of(load(x + i, lanes)), most); });
  return most;
}

/// block_scale() of a block in every lane; for the scales that blocks have.
struct BlockScales {
  VF encode, decode;
  VI byte;
};
inline BlockScales block_scales(const RecipeTraits& recipe, VF amax, float tensor) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (recipe.scale == ScaleFormat::kE8M0) {
    const VI bits = as_int(amax * (1.0f / 448.0f));
    VI byte = bits >> 23; // not negative
    byte -= ((bits & 0x7FFFFF) != 0) & (bits > 0x00400000);
    byte = amax > kMost ? VI{} + 254 : byte;
    const VI inverse = byte == 254 ? VI{} + 0x00400000 : (254 - byte) << 23;
    const VI value = byte == 0 ? VI{} + 0x00400000 : byte << 23;
    return {as_float(inverse), as_float(value), byte};
  }
  if (recipe.scale == ScaleFormat::kE4M3) {
    const Code e4m3(kE4M3);
    const VF d = rounded_to(e4m3, amax * (tensor * (1.0f / 6.0f)));
    const VF encode = 1.0f / (d * (1.0f / tensor));
    return {encode > kMost ? broadcast(kMost) : encode, d, codes_of(e4m3, d)};
  }
  VF encode = recipe.code.largest / amax;
  encode = encode > kMost ? broadcast(kMost) : encode;
  encode = amax == 0 || amax > kMost ? VF{} + 1.0f : encode;
  const VF power = as_float(as_int(encode) & static_cast<int>(0xFF800000u));
  return {power, 1.0f / power, VI{}};
}

/// Blocks that share a scale over all of their columns: a lane of scales at a time.
template <class T, class V>
void blocks_of_rows(const Quantize& a, const TensorScale& tensor, const RandomBits& bits,
                    int64_t row, BlockShape shape) {
  DrawnPiece random{.random = bits};
  const RecipeTraits& recipe = traits(a.recipe);
  const Code f(recipe.code);
  const int64_t end = row + (a.rows - row < shape.rows ? a.rows - row : shape.rows);
  const int64_t across = (a.cols + shape.cols - 1) / shape.cols;
  const auto cols_of = [&](int64_t block) {
    return a.cols - block * shape.cols < shape.cols ? a.cols - block * shape.cols : shape.cols;
  };
  for (int64_t first = 0; first < across; first += kLanes) {
    const int64_t count = across - first < kLanes ? across - first : kLanes;
    VF amax{};
    for (int64_t i = 0; i < count; ++i) {
      VF most{};
      for (int64_t r = row; r < end; ++r)
        most = sizes(static_cast<const T*>(a.x) + r * a.cols + (first + i) * shape.cols,
                     cols_of(first + i), most);
      amax[i] = largest(most);
    }
    const BlockScales scale = block_scales(recipe, amax, tensor.encode);
    for (int64_t i = 0; a.scales != nullptr && i < count; ++i) {
      const int64_t number = row / shape.rows * across + first + i;
      if (recipe.scale == ScaleFormat::kPowerOfTwo)
        static_cast<float*>(a.scales)[number] = scale.decode[i];
      else
        static_cast<uint8_t*>(a.scales)[number] = static_cast<uint8_t>(scale.byte[i]);
    }
    for (int64_t r = row; r < end; ++r)
      for (int64_t i = 0; i < count; ++i)
        quantize_row<T, V>(a, f, recipe.packed(), random, r, (first + i) * shape.cols,
                           cols_of(first + i), scale.encode[i], scale.decode[i]);
  }
}

/// A row of a tensor that has one scale.
template <class T, class V>
void row_of_tensor(const Quantize& a, const TensorScale& tensor, const RandomBits& bits,
                   int64_t row) {
  DrawnPiece random{.random = bits};
  quantize_row<T, V>(a, Code(traits(a.recipe).code), false, random, row, 0, a.cols,
                     tensor.block.encode, tensor.block.decode);
}

/// Blocks along the rows: a lane is a block.
template <class T, class V>
void blocks_of_columns(const Quantize& a, const TensorScale& tensor, const RandomBits& random,
                       int64_t row, BlockShape shape) {
  const RecipeTraits& recipe = traits(a.recipe);
  const Code f(recipe.code);
  const int64_t rows = a.rows - row < shape.rows ? a.rows - row : shape.rows;
  constexpr int64_t kMostRows = 128;
  uint16_t bits[kMostRows][kPiece + kLanes];
  for_vectors(a.cols, [&](int64_t col, auto lanes) {
    if (random.wanted() && col % kPiece == 0)
      for (int64_t r = 0; r < rows; ++r) random.draw(row + r, col, bits[r]);
    const T* const x = static_cast<const T*>(a.x) + row * a.cols + col;
    VF most{};
    for (int64_t r = 0; r < rows; ++r) most = max(absolute_of(load(x + r * a.cols, lanes)), most);
    const BlockScales scale = block_scales(recipe, most, tensor.encode);
    V* const values = static_cast<V*>(a.values) + row * a.cols + col;
    for (int64_t r = 0; r < rows; ++r) {
      const VF scaled = load(x + r * a.cols, lanes) * scale.encode;
      const VF number = random.wanted()
                            ? rounded_stochastically(f, scaled, uniform_of(bits[r] + col % kPiece))
                            : rounded_to(f, scaled);
      store(values + r * a.cols, number * scale.decode, lanes);
    }
  });
}

template <class T, class V> void apply(const Quantize& a) {
  const TensorScale tensor = scale_tensor(a);
  if (a.codes == nullptr && a.scales == nullptr && a.values == nullptr) return;
  const BlockShape shape = block_shape(a);
  const RandomBits random(a.stochastic, a.cols);
  const int64_t bands = (a.rows + shape.rows - 1) / shape.rows;
  const bool tensorwise = traits(a.recipe).tensorwise();
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 13)
  for (int64_t band = 0; band < bands; ++band) {
    if (tensorwise)
      row_of_tensor<T, V>(a, tensor, random, band);
    else if (a.along_rows && shape.cols == 1)
      blocks_of_columns<T, V>(a, tensor, random, band * shape.rows, shape);
    else
      blocks_of_rows<T, V>(a, tensor, random, band * shape.rows, shape);
  }
}

void run(const Quantize& a) {
  visit_float_dtype(a.dtype, [&]<class T>(T) {
    visit_float_dtype(a.values == nullptr ? DType::kFloat32 : a.values_dtype,
                      [&]<class V>(V) { apply<T, V>(a); });
  });
}
