// The table of types of quantized numbers, with their kernels for each instruction set.

#include "encode_k.h"
#include "kernels.h"

#include <redco/error.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

namespace redco {

namespace quantized {

namespace {

// The loops over blocks for an instruction set: decoders are inlined into them. They write to an
// array of their own, which the bytes cannot alias.
#define REDCO_LOOP(name, attribute)                                                     \
  template <class Type>                                                                 \
  attribute void name(const std::byte* blocks, float* to, int64_t n) {                  \
    const auto* from = reinterpret_cast<const Byte*>(blocks);                           \
    for (int64_t i = 0; i < n; ++i, from += Type::bytes, to += Type::size) {            \
      float values[Type::size];                                                         \
      Type::decode(                                                                     \
          from, [&](int k, float x) __attribute__((always_inline)) { values[k] = x; }); \
      std::memcpy(to, values, sizeof(values));                                          \
    }                                                                                   \
  }

REDCO_LOOP(decode_baseline, )
#if defined(__x86_64__)
REDCO_LOOP(decode_avx2, __attribute__((target("avx2,f16c"))))
REDCO_LOOP(decode_avx512, __attribute__((target("avx512f,avx512bw,avx512vl,f16c"))))
#endif

template <class Type>
Decode decoder() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return decode_avx512<Type>;
  if (__builtin_cpu_supports("avx2")) return decode_avx2<Type>;
#endif
  return decode_baseline<Type>;
}

using Plain = void (*)(const float* x, Byte* bytes);
using Fitted = void (*)(const float* x, const float* w, Byte* bytes);

// The weights of a block's elements: their importance relative to its mean. An element never
// counts nothing, so that it keeps its order of magnitude.
template <int size>
REDCO_DECODER void set_weights(const float* importance, float (&w)[size]) {
  float sum = 0;
  for (int i = 0; i < size; ++i) sum += importance == nullptr ? 1 : importance[i];
  const float factor = sum > 0 ? size / sum : 0;
  for (int i = 0; i < size; ++i) w[i] = importance == nullptr ? 1 : importance[i] * factor + 1e-4f;
}

// Those without weights are encoded by `plain`, if there is one.
#define REDCO_ENCODE(name, attribute)                                                             \
  template <class Type, Plain plain, Fitted fitted>                                               \
  attribute void name(const float* from, const float* importance, std::byte* blocks, int64_t n) { \
    auto* to = reinterpret_cast<Byte*>(blocks);                                                   \
    for (int64_t i = 0; i < n; ++i, from += Type::size, to += Type::bytes) {                      \
      if constexpr (fitted != nullptr) {                                                          \
        if (plain == nullptr || importance != nullptr) {                                          \
          float w[Type::size];                                                                    \
          set_weights(importance, w);                                                             \
          fitted(from, w, to);                                                                    \
          continue;                                                                               \
        }                                                                                         \
      }                                                                                           \
      if constexpr (plain != nullptr) plain(from, to);                                            \
    }                                                                                             \
  }

REDCO_ENCODE(encode_baseline, )
#if defined(__x86_64__)
REDCO_ENCODE(encode_avx2, __attribute__((target("avx2,f16c"))))
#endif

template <class Type, Plain plain, Fitted fitted>
Encode encoder() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return encode_avx2<Type, plain, fitted>;
#endif
  return encode_baseline<Type, plain, fitted>;
}

struct Row {
  BlockType type;
  Decode decode;
  Encode encode;
};

template <class Type, Plain plain = nullptr, Fitted fitted = nullptr>
Row row(const char* name, int32_t ggml = -1) {
  return {{name, ggml, Type::size, Type::bytes}, decoder<Type>(), encoder<Type, plain, fitted>()};
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      row<Q8_0, encode_q8_0>("q8_0", 8),
      row<Q4_0, encode_q4_0, fit_q4_0>("q4_0", 2),
      row<Q4_1, encode_q4_1, fit_q4_1>("q4_1", 3),
      row<Q5_0, encode_q5_0, fit_q5_0>("q5_0", 6),
      row<Q5_1, encode_q5_1, fit_q5_1>("q5_1", 7),
      row<Q2_K, nullptr, fit_q2_k>("q2_k", 10),
      row<Q3_K, nullptr, fit_q3_k>("q3_k", 11),
      row<Q4_K, nullptr, fit_q4_k>("q4_k", 12),
      row<Q5_K, nullptr, fit_q5_k>("q5_k", 13),
      row<Q6_K, nullptr, fit_q6_k>("q6_k", 14),
      row<Iq4Nl, nullptr, fit_iq4_nl>("iq4_nl", 20),
      row<Iq4Xs, nullptr, fit_iq4_xs>("iq4_xs", 23),
      row<Mxfp4, nullptr, fit_mxfp4>("mxfp4", 39),
      row<Int8, encode_int8>("int8"),
      row<Int4, encode_int4>("int4"),
      row<Fp8, encode_fp8>("fp8"),
      row<Nf4, encode_code4<nf4_values>>("nf4"),
      row<Fp4, encode_code4<fp4_values>>("fp4"),
  };
  return all;
}

const Row& row_of(const std::string& type) {
  std::string names;
  for (const Row& row : rows()) {
    if (type == row.type.name) return row;
    names += std::string(names.empty() ? "" : ", ") + row.type.name;
  }
  fail("the type of quantized numbers is \"", type, "\", expected one of ", names);
}

}  // namespace

Decode decoder_of(const std::string& type) { return row_of(type).decode; }

Encode encoder_of(const std::string& type) { return row_of(type).encode; }

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
    if (!leaf.is<std::string>() || !path.ends_with("weight_type")) return;
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
