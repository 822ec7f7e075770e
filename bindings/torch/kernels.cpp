// The kernels of the engine as Lua functions. Their arguments are read by the types of parameters,
// in order; one that is left out is nil.
#include "kernels.h"

#include "recompute.h"
#include "state/collector.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/detail/few_queries.h>
#include <redco/error.h>
#include <redco/nn.h>
#include <redco/quantized.h>

#include <cstdint>
#include <lua.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

std::vector<at::Tensor> check_tensor_list(lua_State* L, int index) {
  std::vector<at::Tensor> tensors;
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    tensors.push_back(check_tensor(L, -1));
    lua_pop(L, 1);
  }
  return tensors;
}

// The generator of a call that draws from it.
const at::Generator& check_rng(lua_State* L, int index) {
  const at::Generator* rng = test_generator(L, index);
  require(rng != nullptr, "rng: expected a Generator, got ", describe(L, index));
  about_to_draw(*rng);
  return *rng;
}

template <class T>
T kernel_argument(lua_State* L, int index) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return check_tensor(L, index);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return check_tensor_list(L, index);
  } else if constexpr (std::is_same_v<T, at::Generator>) {
    return check_rng(L, index);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return check_integer(L, index, ("argument " + std::to_string(index)).c_str());
  } else if constexpr (std::is_same_v<T, double>) {
    return luaL_checknumber(L, index);
  } else if constexpr (std::is_same_v<T, bool>) {
    return lua_toboolean(L, index) != 0;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return luaL_checkstring(L, index);
  } else if constexpr (std::is_same_v<T, at::ScalarType>) {
    return check_dtype(L, index);
  } else {
    return lua_isnoneornil(L, index) ? T() : T(kernel_argument<typename T::value_type>(L, index));
  }
}

void push_result(lua_State* L, bool value) { lua_pushboolean(L, value); }
void push_result(lua_State* L, const at::Tensor& value) { push_tensor(L, value); }
void push_result(lua_State* L, const std::optional<at::Tensor>& value) {
  value ? push_tensor(L, *value) : lua_pushnil(L);
}

template <auto kernel>
struct KernelCall;
template <class Result, class... Parameters, Result (*kernel)(Parameters...)>
struct KernelCall<kernel> {
  static int call(lua_State* L) {
    return read_and_call(L, std::index_sequence_for<Parameters...>());
  }

  template <size_t... i>
  static int read_and_call(lua_State* L, std::index_sequence<i...>) {
    const std::tuple<std::remove_cvref_t<Parameters>...> arguments{
        kernel_argument<std::remove_cvref_t<Parameters>>(L, int(i) + 1)...};
    push_result(L, with_memory_retry(L, [&] { return std::apply(kernel, arguments); }));
    return 1;
  }
};

at::Tensor linear_layer(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias) {
  return linear(x, weight, bias.value_or(at::Tensor()));
}

// `type` is that of quantized weights.
at::Tensor grouped_layer(const at::Tensor& x, const at::Tensor& numbers,
                         const std::vector<at::Tensor>& weights,
                         const std::optional<std::string>& type) {
  return type ? grouped_linear(x, numbers, weights, *type) : grouped_linear(x, numbers, weights);
}

at::Tensor dequantized(const at::Tensor& blocks, const std::string& type,
                       std::optional<at::ScalarType> dtype) {
  return dequantize(blocks, type, dtype.value_or(at::kFloat));
}

constexpr luaL_Reg kernels[] = {
    {"linear", KernelCall<linear_layer>::call},
    {"grouped_linear", KernelCall<grouped_layer>::call},
    {"linear_cross_entropy", KernelCall<linear_cross_entropy>::call},
    {"linear_logprobs", KernelCall<linear_logprobs>::call},
    {"few_query_attention",
     KernelCall<attention_of_few_queries>::call},  // nil where LibTorch's is better
    {"segment_attention", KernelCall<segment_attention>::call},
    {"segment_mask", KernelCall<segment_mask>::call},
    {"has_segment_attention", KernelCall<has_segment_attention>::call},
    {"silu_mul", KernelCall<silu_mul>::call},
    {"rotary", KernelCall<rotary>::call},
    {"dropout", KernelCall<dropout>::call},
    {"softmax_dropout", KernelCall<softmax_dropout>::call},
    {"dropout_attention",
     KernelCall<dropout_attention>::call},  // Lua's garbage then holds no scores
    {"quantize", KernelCall<quantize>::call},
    {"dequantize", KernelCall<dequantized>::call},
    {"quantized_linear", KernelCall<quantized_linear>::call},
    {nullptr, nullptr},
};

void push_block_types(lua_State* L) {
  lua_newtable(L);
  int i = 0;
  for (const BlockType& type : block_types()) {
    lua_newtable(L);
    lua_pushstring(L, type.name);
    lua_setfield(L, -2, "name");
    push_integer(L, type.size);
    lua_setfield(L, -2, "size");
    push_integer(L, type.bytes);
    lua_setfield(L, -2, "bytes");
    lua_rawseti(L, -2, ++i);
  }
}

}  // namespace

void add_kernels(lua_State* L) {
  luaL_register(L, nullptr, kernels);
  push_block_types(L);
  lua_setfield(L, -2, "block_types");
}

}  // namespace redco::lua
