// Included once per instruction set by quantize_simd.cpp. The steps of formats.h, a vector at a
// time.

typedef int8_t Bytes __attribute__((vector_size(PT_LANES)));

/// Constants of a code, broadcast by the compiler where they are used.
struct Code {
  explicit Code(const CodeFormat& f)
      : mantissa(f.mantissa), least((f.min_exponent() + 127) << 23), shift((23 - f.mantissa) << 23),
        offset((127 - f.bias) << f.mantissa), largest(f.largest),
        steps(power_of_two(f.mantissa - f.min_exponent())),
        smallest(power_of_two(f.min_exponent())), sign_shift(f.sign == 0x80 ? 24 : 28), nan(f.nan),
        has_nan(f.has_nan) {}
  int mantissa, least, shift, offset;
  float largest, steps, smallest;
  int sign_shift, nan;
  bool has_nan;
};

inline VF rounded_to(const Code& f, VF x) {
  const VI sign = as_int(x) & static_cast<int>(0x80000000u);
  const VF magnitude = as_float(as_int(x) ^ sign);
  const VF size = magnitude > f.largest ? broadcast(f.largest) : magnitude; // NaN stays
  const VI exponent = as_int(size) & 0x7F800000;
  const VF shift = as_float((exponent > f.least ? exponent : VI{} + f.least) + f.shift);
  const VF number = as_float(as_int((size + shift) - shift) | sign);
  if (f.has_nan) return magnitude != magnitude ? x : number;
  return magnitude != magnitude ? broadcast(f.largest) : number;
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

/// One row of a block, or of the tensor.
template <class T, class V, class E, class D>
void quantize_row(const Quantize& a, const Code& f, bool packed, int64_t row, int64_t col,
                  int64_t cols, E&& encode, D&& decode) {
  const T* x = static_cast<const T*>(a.x) + row * a.cols + col;
  V* values = a.values == nullptr ? nullptr : static_cast<V*>(a.values) + row * a.cols + col;
  constexpr int64_t kMost = 256; // a row of the tensor is taken in pieces
  for (int64_t begin = 0; begin < cols; begin += kMost) {
    const int64_t n = cols - begin < kMost ? cols - begin : kMost;
    uint8_t unpacked[kMost];
    uint8_t* codes = packed               ? unpacked
                     : a.codes == nullptr ? nullptr
                                          : a.codes + row * a.cols + col + begin;
    for_vectors(n, [&](int64_t i, auto lanes) {
      const VF number = rounded_to(f, load(x + begin + i, lanes) * encode);
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

/// Blocks that share a scale over all of their columns.
template <class T, class V>
void blocks_of_rows(const Quantize& a, const TensorScale& tensor, int64_t row, BlockShape shape) {
  const RecipeTraits& recipe = traits(a.recipe);
  const Code f(recipe.code);
  const int64_t rows = a.rows - row < shape.rows ? a.rows - row : shape.rows;
  const int64_t across = (a.cols + shape.cols - 1) / shape.cols;
  for (int64_t col = 0; col < a.cols; col += shape.cols) {
    const int64_t cols = a.cols - col < shape.cols ? a.cols - col : shape.cols;
    BlockScale scale = tensor.block;
    if (!recipe.tensorwise()) {
      VF most{};
      for (int64_t r = row; r < row + rows; ++r)
        most = sizes(static_cast<const T*>(a.x) + r * a.cols + col, cols, most);
      scale = block_scale(recipe, largest(most), tensor.encode);
      const int64_t number = row / shape.rows * across + col / shape.cols;
      if (a.scales != nullptr && recipe.scale == ScaleFormat::kPowerOfTwo)
        static_cast<float*>(a.scales)[number] = scale.decode;
      else if (a.scales != nullptr)
        static_cast<uint8_t*>(a.scales)[number] = scale.byte;
    }
    for (int64_t r = row; r < row + rows; ++r)
      quantize_row<T, V>(a, f, recipe.packed(), r, col, cols, scale.encode, scale.decode);
  }
}

/// Blocks along the rows: a lane is a block.
template <class T, class V>
void blocks_of_columns(const Quantize& a, const TensorScale& tensor, int64_t row,
                       BlockShape shape) {
  const RecipeTraits& recipe = traits(a.recipe);
  const Code f(recipe.code);
  const int64_t end = row + (a.rows - row < shape.rows ? a.rows - row : shape.rows);
  for_vectors(a.cols, [&](int64_t col, auto lanes) {
    VF most{};
    for (int64_t r = row; r < end; ++r)
      most = max(absolute_of(load(static_cast<const T*>(a.x) + r * a.cols + col, lanes)), most);
    VF encode{}, decode{};
    for (int lane = 0; lane < kLanes; ++lane) {
      const BlockScale scale = block_scale(recipe, most[lane], tensor.encode);
      encode[lane] = scale.encode;
      decode[lane] = scale.decode;
    }
    for (int64_t r = row; r < end; ++r)
      store(static_cast<V*>(a.values) + r * a.cols + col,
            rounded_to(f, load(static_cast<const T*>(a.x) + r * a.cols + col, lanes) * encode) *
                decode,
            lanes);
  });
}

template <class T, class V> void apply(const Quantize& a) {
  const TensorScale tensor = scale_tensor(a);
  if (a.codes == nullptr && a.scales == nullptr && a.values == nullptr) return;
  const BlockShape shape = block_shape(a);
  const int64_t bands = (a.rows + shape.rows - 1) / shape.rows;
  const bool columns = a.along_rows && shape.cols == 1 && !traits(a.recipe).tensorwise();
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 13)
  for (int64_t band = 0; band < bands; ++band) {
    if (columns)
      blocks_of_columns<T, V>(a, tensor, band * shape.rows, shape);
    else
      blocks_of_rows<T, V>(a, tensor, band * shape.rows, shape);
  }
}

void run(const Quantize& a) {
  visit_float_dtype(a.dtype, [&]<class T>(T) {
    visit_float_dtype(a.values == nullptr ? DType::kFloat32 : a.values_dtype,
                      [&]<class V>(V) { apply<T, V>(a); });
  });
}
