// The table of types of quantized numbers, with their kernels for each instruction set.

#include "encode_k.h"
#include "kernels.h"

#include <redco/error.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#if defined(__x86_64__) && !defined(__clang__)
#define REDCO_X86
#include <immintrin.h>
#endif

// Decoder, name, number in GGUF files or -1, encoder for equal weights of all elements, and encoder
// for any weights. Either encoder may be nullptr.
// clang-format off
#define REDCO_TYPES(row)                                       \
  row(Q8_0, "q8_0", 8, encode_q8_0, nullptr),                  \
  row(Q4_0, "q4_0", 2, encode_q4_0, fit_q4_0),                 \
  row(Q4_1, "q4_1", 3, encode_q4_1, fit_q4_1),                 \
  row(Q5_0, "q5_0", 6, encode_q5_0, fit_q5_0),                 \
  row(Q5_1, "q5_1", 7, encode_q5_1, fit_q5_1),                 \
  row(Q2_K, "q2_k", 10, nullptr, fit_q2_k),                    \
  row(Q3_K, "q3_k", 11, nullptr, fit_q3_k),                    \
  row(Q4_K, "q4_k", 12, nullptr, fit_q4_k),                    \
  row(Q5_K, "q5_k", 13, nullptr, fit_q5_k),                    \
  row(Q6_K, "q6_k", 14, nullptr, fit_q6_k),                    \
  row(Iq4Nl, "iq4_nl", 20, nullptr, fit_iq4_nl),               \
  row(Iq4Xs, "iq4_xs", 23, nullptr, fit_iq4_xs),               \
  row(Mxfp4, "mxfp4", 39, nullptr, fit_mxfp4),                 \
  row(Int8, "int8", -1, encode_int8, nullptr),                 \
  row(Int4, "int4", -1, encode_int4, nullptr),                 \
  row(Fp8, "fp8", -1, encode_fp8, nullptr),                    \
  row(Nf4, "nf4", -1, encode_code4<nf4_values>, nullptr),      \
  row(Fp4, "fp4", -1, encode_code4<fp4_values>, nullptr)
// clang-format on

namespace redco {

namespace quantized {

float half_values[1 << 16], e4m3_values[1 << 8];

// The order of these headers matters.
// clang-format off
#define REDCO_WIDTH 4
namespace plain {
#include "lanes.h"
#include "decode.h"
#include "loops.h"
}  // namespace plain
#undef REDCO_WIDTH

#ifdef REDCO_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define REDCO_WIDTH 8
namespace avx2 {
#include "lanes.h"
#include "decode.h"
#include "loops.h"
}  // namespace avx2
#undef REDCO_WIDTH
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,fma")
#define REDCO_WIDTH 16
namespace avx512 {
#include "lanes.h"
#include "decode.h"
#include "loops.h"
}  // namespace avx512
#undef REDCO_WIDTH
#pragma GCC pop_options
#endif
// clang-format on

namespace {

std::vector<const Kernels*> find_sets() {
  std::vector<const Kernels*> sets{plain::kernels};
#ifdef REDCO_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(avx2::kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    sets.push_back(avx512::kernels);
#endif
  return sets;
}

// Whether a type has this encoder. With -fsanitize=undefined, GCC does not accept `f != nullptr` as
// a constant.
template <auto encoder>
constexpr bool exists = !std::is_null_pointer_v<decltype(encoder)>;

// The weights of a block's elements: their importance relative to its mean. No weight is 0, so that
// each element keeps its order of magnitude.
template <int size>
REDCO_INLINE void set_weights(const float* importance, float (&w)[size]) {
  float sum = 0;
  for (int i = 0; i < size; ++i) sum += importance == nullptr ? 1 : importance[i];
  const float factor = sum > 0 ? size / sum : 0;
  for (int i = 0; i < size; ++i) w[i] = importance == nullptr ? 1 : importance[i] * factor + 1e-4f;
}

// Encodes blocks with weights by `fitted(x, w, bytes)`, and blocks without by `plain(x, bytes)`. If
// one of these is missing, the other encodes all blocks.
#define REDCO_ENCODE(name, attribute)                                                             \
  template <class Type, auto plain, auto fitted>                                                  \
  attribute void name(const float* from, const float* importance, std::byte* blocks, int64_t n) { \
    auto* to = reinterpret_cast<Byte*>(blocks);                                                   \
    for (int64_t i = 0; i < n; ++i, from += Type::size, to += Type::bytes) {                      \
      if constexpr (exists<fitted>) {                                                             \
        if (!exists<plain> || importance != nullptr) {                                            \
          float w[Type::size];                                                                    \
          set_weights(importance, w);                                                             \
          fitted(from, w, to);                                                                    \
          continue;                                                                               \
        }                                                                                         \
      }                                                                                           \
      if constexpr (exists<plain>) plain(from, to);                                               \
    }                                                                                             \
  }

REDCO_ENCODE(encode_baseline, )
#if defined(__x86_64__)
REDCO_ENCODE(encode_avx2, __attribute__((target("avx2,f16c"))))
#endif

template <class Type, auto plain, auto fitted>
Encode encoder() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return encode_avx2<Type, plain, fitted>;
#endif
  return encode_baseline<Type, plain, fitted>;
}

struct Row {
  BlockType type;
  Encode encode;
};

template <class Type, auto plain, auto fitted>
Row row_of(const char* name, int32_t ggml) {
  return {{name, ggml, Type::size, Type::bytes}, encoder<Type, plain, fitted>()};
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    for (int i = 0; i < 1 << 16; ++i)
      half_values[i] = c10::Half(uint16_t(i), c10::Half::from_bits());
    for (int i = 0; i < 1 << 8; ++i)
      e4m3_values[i] = c10::detail::fp8e4m3fn_to_fp32_value(uint8_t(i));
#define REDCO_ROW(Type, name, ggml, plain_encoder, fitted_encoder) \
  row_of<plain::Type, plain_encoder, fitted_encoder>(name, ggml)
    return std::vector<Row>{REDCO_TYPES(REDCO_ROW)};
#undef REDCO_ROW
  }();
  return all;
}

size_t find_row(const std::string& type) {
  for (const Row& row : rows())
    if (type == row.type.name) return size_t(&row - rows().data());
  std::string names;
  for (const Row& row : rows()) names += std::string(names.empty() ? "" : ", ") + row.type.name;
  fail("the type of quantized numbers is \"", type, "\", expected one of ", names);
}

}  // namespace

std::vector<const Kernels*> all_kernels_of(const std::string& type) {
  std::vector<const Kernels*> kernels = find_sets();
  for (const Kernels*& set : kernels) set += find_row(type);
  return kernels;
}

const Kernels& kernels_of(const std::string& type) {
  static const Kernels* const best = find_sets().back();
  return best[find_row(type)];
}

Encode encoder_of(const std::string& type) { return rows()[find_row(type)].encode; }

}  // namespace quantized

const std::vector<BlockType>& block_types() {
  static const std::vector<BlockType> all = [] {
    std::vector<BlockType> types;
    for (const quantized::Row& row : quantized::rows()) types.push_back(row.type);
    return types;
  }();
  return all;
}

const BlockType* find_block_type(const std::string& name) {
  auto found =
      std::ranges::find_if(block_types(), [&](const BlockType& type) { return name == type.name; });
  return found == block_types().end() ? nullptr : &*found;
}

const BlockType* find_ggml_block_type(uint32_t number) {
  auto found = std::ranges::find_if(
      block_types(), [&](const BlockType& type) { return int64_t{type.ggml} == int64_t{number}; });
  return found == block_types().end() ? nullptr : &*found;
}

std::map<std::string, const BlockType*> quantized_weights(const Tree& params) {
  constexpr std::string_view ending = "_type";
  std::map<std::string, const BlockType*> found;
  for_each_leaf(params, [&](const std::string& path, const Tree& leaf) {
    if (!leaf.is<std::string>() || !path.ends_with(ending)) return;
    if (const BlockType* type = find_block_type(leaf.as<std::string>()))
      found[path.substr(0, path.size() - ending.size())] = type;
  });
  return found;
}

int64_t count_numbers(const Tree& params, const std::function<bool(const at::Tensor&)>& counts) {
  const auto types = quantized_weights(params);
  std::set<const void*> counted;
  int64_t n = 0;
  for (const auto& [name, tensor] : named_tensors(params)) {
    if (counts && !counts(tensor)) continue;
    if (!counted.insert(tensor.unsafeGetTensorImpl()).second) continue;
    auto found = types.find(name);
    n += found == types.end() ? tensor.numel()
                              : tensor.numel() / found->second->bytes * found->second->size;
  }
  return n;
}

}  // namespace redco
