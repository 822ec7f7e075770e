// Process-wide switches of LibTorch: the precision of products, deterministic algorithms, and the
// choice of attention kernels.
#include "held_setting.h"
#include "state/arguments.h"
#include "state/context.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/detail/planned_device.h>
#include <redco/error.h>

#include <ATen/Context.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

namespace redco::lua {

namespace {

constexpr const char* precisions[] = {"highest", "high", "medium"};  // as in the enum

// LibTorch allows TF32 for convolutions and recurrent layers by default, though not for products.
// Their results then differ from the CPU's in the fourth digit.
void let_convolutions_follow() {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuDNN(context.float32MatmulPrecision() !=
                            at::Float32MatmulPrecision::HIGHEST);
}

int set_float32_matmul_precision(lua_State* L) {
  std::string name = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : "";
  require(std::find(std::begin(precisions), std::end(precisions), name) != std::end(precisions),
          "torch.set_float32_matmul_precision: expected \"highest\", \"high\" or \"medium\", got ",
          described(L, 1));
  at::globalContext().setFloat32MatmulPrecision(name);
  let_convolutions_follow();
  return 0;
}

int get_float32_matmul_precision(lua_State* L) {
  auto precision = at::globalContext().float32MatmulPrecision();
  lua_pushstring(L, precisions[size_t(precision)]);
  return 1;
}

bool check_boolean(lua_State* L, int index, const char* function) {
  require(lua_isboolean(L, index), function, ": expected true or false, got ", described(L, index));
  return lua_toboolean(L, index);
}

int use_deterministic_algorithms(lua_State* L) {
  constexpr const char* name = "torch.use_deterministic_algorithms";
  bool mode = check_boolean(L, 1, name), warn_only = false;
  if (!lua_isnoneornil(L, 2)) {
    NamedArguments args(L, 2, name);
    warn_only = args.get<bool>("warn_only", false);
    args.finish();
  }
  at::globalContext().setDeterministicAlgorithms(mode, warn_only);
  return 0;
}

int are_deterministic_algorithms_enabled(lua_State* L) {
  lua_pushboolean(L, at::globalContext().deterministicAlgorithms());
  return 1;
}

template <void (at::Context::*set)(bool)>
int enable_sdp(lua_State* L) {
  bool enabled = check_boolean(L, 1, "torch.backends.cuda: a switch of attention");
  (at::globalContext().*set)(enabled);
  return 0;
}

template <bool (at::Context::*get)() const>
int is_sdp_enabled(lua_State* L) {
  lua_pushboolean(L, (at::globalContext().*get)());
  return 1;
}

// cuDNN plans once per number of keys, which takes 20 to 40 ms. A decoder with a key-value cache
// has another number for each token.
struct CudnnAttention {
  static bool get() { return at::globalContext().userEnabledCuDNNSDP(); }
  static void set(bool on) { at::globalContext().setSDPUseCuDNN(on); }
};

}  // namespace

int without_cudnn_attention(lua_State* L) {
  const at::Context& all = at::globalContext();
  std::optional<HeldSetting<CudnnAttention>> off;
  if (all.userEnabledFlashSDP() || all.userEnabledMemEfficientSDP()) off.emplace(false);
  call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

int device_type(lua_State* L) {
  const c10::DeviceType own = check_tensor(L, 1).device().type();
  const c10::DeviceType type = planned_device().value_or(own);
  lua_pushstring(L, c10::DeviceTypeName(type, /*lower_case=*/true).c_str());
  return 1;
}

void add_backends(lua_State* L) {
  let_convolutions_follow();
  register_functions(
      L, "torch.",
      {{"set_float32_matmul_precision", set_float32_matmul_precision,
        "set_float32_matmul_precision(precision: string)\n"
        "Sets how exact matrix products, convolutions and recurrent layers of float32 tensors are. "
        "\"highest\", the default, computes in float32; \"high\" allows TF32, which has 10 bits of "
        "fraction and is several times as fast on GPUs that have it; \"medium\" also allows "
        "bfloat16 for products. In PyTorch, convolutions use TF32 by default."},
       {"get_float32_matmul_precision", get_float32_matmul_precision,
        "get_float32_matmul_precision() -> string\n"
        "Returns the precision set by `set_float32_matmul_precision`; the default is \"highest\"."},
       {"use_deterministic_algorithms", use_deterministic_algorithms,
        "use_deterministic_algorithms(mode: boolean, {warn_only: boolean = false})\n"
        "Makes operators return the same results in every run. Some use slower kernels; those "
        "without such a kernel raise an error, or warn with `warn_only`. Products on GPUs also "
        "need the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 when the program starts."},
       {"are_deterministic_algorithms_enabled", are_deterministic_algorithms_enabled,
        "are_deterministic_algorithms_enabled() -> boolean\n"
        "Returns whether `use_deterministic_algorithms` is on."}});
  lua_newtable(L);
  register_value(L, "torch.backends", "torch.backends\nSwitches of the libraries below LibTorch.");
  lua_newtable(L);
  register_value(L, "torch.backends.cuda",
                 "torch.backends.cuda\n"
                 "The kernels that `scaled_dot_product_attention` may use on a GPU. All are "
                 "allowed by default.");
  register_functions(
      L, "torch.backends.cuda.",
      {{"enable_flash_sdp", enable_sdp<&at::Context::setSDPUseFlash>,
        "enable_flash_sdp(enabled)\nAllows FlashAttention, or forbids it."},
       {"flash_sdp_enabled", is_sdp_enabled<&at::Context::userEnabledFlashSDP>,
        "flash_sdp_enabled() -> boolean\nReturns whether FlashAttention is allowed."},
       {"enable_mem_efficient_sdp", enable_sdp<&at::Context::setSDPUseMemEfficient>,
        "enable_mem_efficient_sdp(enabled)\nAllows memory-efficient attention, or forbids it."},
       {"mem_efficient_sdp_enabled", is_sdp_enabled<&at::Context::userEnabledMemEfficientSDP>,
        "mem_efficient_sdp_enabled() -> boolean\nReturns whether memory-efficient attention is "
        "allowed."},
       {"enable_cudnn_sdp", enable_sdp<&at::Context::setSDPUseCuDNN>,
        "enable_cudnn_sdp(enabled)\n"
        "Allows cuDNN's attention, or forbids it. For one query row `redco.nn.attention` uses it "
        "only if no other fused kernel is allowed: cuDNN is slow at every new number of keys."},
       {"cudnn_sdp_enabled", is_sdp_enabled<&at::Context::userEnabledCuDNNSDP>,
        "cudnn_sdp_enabled() -> boolean\nReturns whether cuDNN's attention is allowed."},
       {"enable_math_sdp", enable_sdp<&at::Context::setSDPUseMath>,
        "enable_math_sdp(enabled)\n"
        "Allows attention by products and a softmax, which holds all scores, or forbids it."},
       {"math_sdp_enabled", is_sdp_enabled<&at::Context::userEnabledMathSDP>,
        "math_sdp_enabled() -> boolean\nReturns whether attention by products and a softmax is "
        "allowed."}});
  lua_setfield(L, -2, "cuda");
  lua_setfield(L, -2, "backends");
}

}  // namespace redco::lua
