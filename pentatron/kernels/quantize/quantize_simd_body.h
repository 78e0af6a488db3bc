// Included once per instruction set by quantize_simd.cpp. The steps of formats.h, a vector at a
// time.

#include "pentatron/kernels/common/philox_body.h"

typedef int8_t Bytes __attribute__((vector_size(PT_LANES)));

/// Constants of a code, broadcast by the compiler where they are used.
struct Code {
  explicit Code(const CodeFormat& f)
      : mantissa(f.mantissa), least((f.min_exponent() + 127) << 23), shift((23 - f.mantissa) << 23),
        offset((127 - f.bias) << f.mantissa), step(power_of_two(-f.mantissa)),
        steps_of_one(power_of_two(f.mantissa)), largest(f.largest),
        steps(power_of_two(f.mantissa - f.min_exponent())),
        smallest(power_of_two(f.min_exponent())), sign_shift(f.sign == 0x80 ? 24 : 28), nan(f.nan),
        has_nan(f.has_nan) {}
  int mantissa, least, shift, offset;
  float step, steps_of_one, largest, steps, smallest;
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

inline VF absolute_of(VF x) {
  return as_float(as_int(x) & 0x7FFFFFFF);
}

/// `uniform` in (0, 1) decides between the two numbers around x.
inline VF rounded_stochastically(const Code& f, VF x, VF uniform) {
  const VF size = absolute_of(x);
  const VF within = size <= f.largest ? size : broadcast(f.largest); // NaN, too
  const VI exponent = as_int(within) & 0x7F800000;
  const VI power = exponent > f.least ? exponent : VI{} + f.least;
  const VF step = as_float(power) * f.step;
  const VF ratio = within * as_float((254 << 23) - power) * f.steps_of_one; // over the step
  const VF below = __builtin_convertvector(__builtin_convertvector(ratio, VI), VF);
  const VF result = (below + (ratio - below > uniform ? VF{} + 1.0f : VF{})) * step;
  // As rounded_to() beyond the largest; zero has no sign.
  const VF number = as_float(as_int(result) | ((x < 0) & static_cast<int>(0x80000000u)));
  if (f.has_nan) return x != x ? x : number;
  return number;
}

#if PT_LANES == 16
using Whole = __m512i;
#define PT_UNPACK(half, bits, a, b) _mm512_unpack##half##_epi##bits(a, b)
#else
using Whole = __m256i;
#define PT_UNPACK(half, bits, a, b) _mm256_unpack##half##_epi##bits(a, b)
#endif
/// The words of lane 0, then those of lane 1, and so on; in whole vectors, which can be read at
/// once.
inline void interleave(const PhiloxLanes& drawn, void* to) {
  const Whole w0 = (Whole)drawn.word[0], w1 = (Whole)drawn.word[1], w2 = (Whole)drawn.word[2],
              w3 = (Whole)drawn.word[3];
  const Whole a = PT_UNPACK(lo, 32, w0, w1), b = PT_UNPACK(lo, 32, w2, w3),
              c = PT_UNPACK(hi, 32, w0, w1), d = PT_UNPACK(hi, 32, w2, w3);
  // of_i has lane i of every four.
  const Whole of_0 = PT_UNPACK(lo, 64, a, b), of_1 = PT_UNPACK(hi, 64, a, b),
              of_2 = PT_UNPACK(lo, 64, c, d), of_3 = PT_UNPACK(hi, 64, c, d);
#if PT_LANES == 16
  const Whole e = _mm512_shuffle_i32x4(of_0, of_1, 0x44),
              f = _mm512_shuffle_i32x4(of_2, of_3, 0x44),
              g = _mm512_shuffle_i32x4(of_0, of_1, 0xEE),
              h = _mm512_shuffle_i32x4(of_2, of_3, 0xEE);
  const Whole all[4] = {_mm512_shuffle_i32x4(e, f, 0x88), _mm512_shuffle_i32x4(e, f, 0xDD),
                        _mm512_shuffle_i32x4(g, h, 0x88), _mm512_shuffle_i32x4(g, h, 0xDD)};
#else
  const Whole all[4] = {
      _mm256_permute2x128_si256(of_0, of_1, 0x20), _mm256_permute2x128_si256(of_2, of_3, 0x20),
      _mm256_permute2x128_si256(of_0, of_1, 0x31), _mm256_permute2x128_si256(of_2, of_3, 0x31)};
#endif
  std::memcpy(to, all, sizeof all);
}
#undef PT_UNPACK

/// The random bits of neighbouring columns, a vector of Philox blocks at a time.
constexpr int64_t kPiece = 8 * kLanes;
class RandomBits {
 public:
  RandomBits(const Stochastic* s, int64_t cols) : s_(s), cols_(cols) {
    if (s == nullptr) return;
    for (int64_t col = 0; s->col_ids != nullptr && col < cols; ++col) {
      const int64_t id = s->col_ids[col], first = s->col_ids[col / 8 * 8];
      eights_ = eights_ && first % 8 == 0 && id == first + col % 8;
    }
    if (!eights_) return;
    low_.resize(static_cast<size_t>(cols / 8 + 1 + kLanes));
    high_.resize(low_.size());
    for (int64_t col = 0; col < cols; col += 8) {
      const int64_t id = s->col_ids != nullptr ? s->col_ids[col] : col;
      low_[static_cast<size_t>(col / 8)] = static_cast<uint32_t>(id / 8);
      high_[static_cast<size_t>(col / 8)] = static_cast<uint32_t>(id / 8 >> 32);
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
    VU low, high;
    std::memcpy(&low, low_.data() + col / 8, sizeof low);
    std::memcpy(&high, high_.data() + col / 8, sizeof high);
    const auto r = static_cast<uint64_t>(s_->row_ids != nullptr ? s_->row_ids[row] : row);
    const PhiloxLanes drawn = philox4x32(
        {{VU{} + static_cast<uint32_t>(r), VU{} + static_cast<uint32_t>(r >> 32), low, high}},
        s_->key);
    interleave(drawn, bits);
  }

 private:
  const Stochastic* s_;
  int64_t cols_;
  bool eights_ = true;               ///< whether columns share blocks as without col_ids
  std::vector<uint32_t> low_, high_; ///< numbers of the blocks of every eight columns
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

/// `most` and the sizes of `cols` numbers, in two chains.
template <class T> VF sizes(const T* x, int64_t cols, VF most) {
  VF other{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= cols; i += 2 * kLanes) {
    most = max(absolute_of(load(x + i)), most);
    other = max(absolute_of(load(x + i + kLanes)), other);
  }
  for_vectors<VF>(
      i, cols, [&](int64_t j, auto lanes) { most = max(absolute_of(load(x + j, lanes)), most); });
  return max(other, most);
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

/// Lane i is the largest lane of v[i].
inline VF largest_of_each(const VF* v) {
#if PT_LANES == 16
#define PT_PAIR(half, bits, a, b) _mm512_unpack##half##_p##bits(a, b)
#else
#define PT_PAIR(half, bits, a, b) _mm256_unpack##half##_p##bits(a, b)
#endif
  VF of_4[kLanes / 4]; // the largest of each quarter (AVX2: half) of a vector, of four vectors
  for (int64_t i = 0; i < kLanes / 4; ++i) {
    const VF* const q = v + 4 * i;
    const VD a = (VD)max(PT_PAIR(lo, s, q[0], q[1]), PT_PAIR(hi, s, q[0], q[1]));
    const VD b = (VD)max(PT_PAIR(lo, s, q[2], q[3]), PT_PAIR(hi, s, q[2], q[3]));
    of_4[i] = max((VF)PT_PAIR(lo, d, a, b), (VF)PT_PAIR(hi, d, a, b));
  }
#undef PT_PAIR
#if PT_LANES == 16
  const auto halves = [&](VF a, VF b) {
    return max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  };
  const VF a = halves(of_4[0], of_4[1]), b = halves(of_4[2], of_4[3]);
  return max(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
#else
  return max(_mm256_permute2f128_ps(of_4[0], of_4[1], 0x20),
             _mm256_permute2f128_ps(of_4[0], of_4[1], 0x31));
#endif
}

/// The scales of as many blocks as there are lanes, in the rows from `row` to `end`.
template <class T>
BlockScales scales_of(const Quantize& a, const RecipeTraits& recipe, float tensor, int64_t row,
                      int64_t end, int64_t block, int64_t cols) {
  VF most[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const T* x = static_cast<const T*>(a.x) + row * a.cols + (block + i) * cols;
    most[i] = VF{};
    for (int64_t r = row; r < end; ++r, x += a.cols)
      for (int64_t c = 0; c < cols; c += kLanes) most[i] = max(absolute_of(load(x + c)), most[i]);
  }
  return block_scales(recipe, largest_of_each(most), tensor);
}

/// The values of these blocks, which have whole vectors, in one row.
template <bool chance, class T, class V>
void values_of_blocks(const Quantize& a, const Code& f, const RandomBits& random, int64_t row,
                      int64_t block, int64_t cols, const BlockScales& scales) {
  alignas(64) float encode[kLanes], decode[kLanes];
  store(encode, scales.encode);
  store(decode, scales.decode);
  const int64_t first = block * cols, vectors = cols / kLanes;
  const T* const x = static_cast<const T*>(a.x) + row * a.cols + first;
  V* const values = static_cast<V*>(a.values) + row * a.cols + first;
  alignas(64) uint16_t bits[kPiece];
  for (int64_t i = 0; i < kLanes; ++i)
    for (int64_t v = i * vectors; v < (i + 1) * vectors; ++v) {
      const VF scaled = load(x + v * kLanes) * encode[i];
      VF number;
      if constexpr (chance) {
        if (v % 8 == 0) random.draw(row, first + v * kLanes, bits);
        number = rounded_stochastically(f, scaled, uniform_of(bits + v % 8 * kLanes));
      } else {
        number = rounded_to(f, scaled);
      }
      store(values + v * kLanes, number * decode[i]);
    }
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
  int64_t first = 0;
  if (a.codes == nullptr && a.scales == nullptr) // for training
    for (; (first + kLanes) * shape.cols <= a.cols; first += kLanes) {
      const BlockScales scales =
          scales_of<T>(a, recipe, tensor.encode, row, end, first, shape.cols);
      for (int64_t r = row; r < end; ++r)
        if (bits.wanted())
          values_of_blocks<true, T, V>(a, f, bits, r, first, shape.cols, scales);
        else
          values_of_blocks<false, T, V>(a, f, bits, r, first, shape.cols, scales);
    }
  for (; first < across; first += kLanes) {
    const int64_t count = across - first < kLanes ? across - first : kLanes;
    alignas(64) float sizes_of[kLanes] = {}, encode[kLanes], decode[kLanes];
    for (int64_t i = 0; i < count; ++i) {
      VF most{};
      for (int64_t r = row; r < end; ++r)
        most = sizes(static_cast<const T*>(a.x) + r * a.cols + (first + i) * shape.cols,
                     cols_of(first + i), most);
      sizes_of[i] = largest(most);
    }
    const BlockScales scale = block_scales(recipe, load(sizes_of), tensor.encode);
    store(encode, scale.encode);
    store(decode, scale.decode);
    for (int64_t i = 0; a.scales != nullptr && i < count; ++i) {
      const int64_t number = row / shape.rows * across + first + i;
      if (recipe.scale == ScaleFormat::kPowerOfTwo)
        static_cast<float*>(a.scales)[number] = decode[i];
      else
        static_cast<uint8_t*>(a.scales)[number] = static_cast<uint8_t>(scale.byte[i]);
    }
    for (int64_t r = row; r < end; ++r)
      for (int64_t i = 0; i < count; ++i)
        quantize_row<T, V>(a, f, recipe.packed(), random, r, (first + i) * shape.cols,
                           cols_of(first + i), encode[i], decode[i]);
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
  // A copy of some columns, because rows of a matrix often share the sets of the cache.
  const int64_t width = rows > kMostRows / 2 ? kPiece / 2 : kPiece;
  alignas(64) float copy[kMostRows / 2 * kPiece];
  uint16_t bits[kPiece + kLanes];
  for (int64_t col = 0; col < a.cols; col += width) {
    const int64_t cols = a.cols - col < width ? a.cols - col : width;
    VF encode[kPiece / kLanes] = {}, decode[kPiece / kLanes];
    for (int64_t r = 0; r < rows; ++r) {
      const T* const x = static_cast<const T*>(a.x) + (row + r) * a.cols + col;
      for_vectors(cols, [&](int64_t i, auto lanes) {
        const VF v = load(x + i, lanes);
        store(copy + r * width + i, v);
        encode[i / kLanes] = max(absolute_of(v), encode[i / kLanes]);
      });
    }
    for (int64_t i = 0; i < cols; i += kLanes) {
      const BlockScales scale = block_scales(recipe, encode[i / kLanes], tensor.encode);
      encode[i / kLanes] = scale.encode;
      decode[i / kLanes] = scale.decode;
    }
    for (int64_t r = 0; r < rows; ++r) {
      V* const values = static_cast<V*>(a.values) + (row + r) * a.cols + col;
      if (random.wanted()) random.draw(row + r, col, bits);
      for_vectors(cols, [&](int64_t i, auto lanes) {
        const VF scaled = load(copy + r * width + i) * encode[i / kLanes];
        const VF number = random.wanted() ? rounded_stochastically(f, scaled, uniform_of(bits + i))
                                          : rounded_to(f, scaled);
        store(values + i, number * decode[i / kLanes], lanes);
      });
    }
  }
}

float largest_size(DType dtype, int64_t n, const void* x) {
  float result = 0;
  visit_float_dtype(dtype, [&]<class T>(T) {
    const T* const p = static_cast<const T*>(x);
    constexpr int64_t kRun = int64_t{1} << 14;
#pragma omp parallel for schedule(static) reduction(max : result) if (n > kRun)
    for (int64_t begin = 0; begin < n; begin += kRun)
      result = std::max(result, largest(sizes(p + begin, std::min(kRun, n - begin), VF{})));
  });
  return result;
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
