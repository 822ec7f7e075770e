// Functions whose work on a GPU is captured once and replayed.

#include "torch.h"

#include "state/context.h"
#include "state/object.h"
#include "state/tensor.h"

#include <redco/detail/captured_calls.h>

#include <memory>

namespace redco::lua {

namespace {

struct CapturedFunction : CapturedCalls {
  static constexpr const char* lua_name = "CapturedFunction";
  using CapturedCalls::CapturedCalls;
};

int run(lua_State* L) {
  push_tensor(L, (*check_object<CapturedFunction>(L, 1, "CapturedFunction:run"))());
  return 1;
}

}  // namespace

void make_captured_type(lua_State* L) {
  make_object_type<CapturedFunction>(
      L, "CapturedFunction {}\nA function whose work on a GPU is captured once and replayed.",
      {{"run", run, "run() -> Tensor\nReturns the function's result."}});
}

int captured(lua_State* L) {
  const at::Device device = check_tensor(L, 1).device();
  const Ref function(L, 2);
  push_object(L, std::make_shared<CapturedFunction>(device, [function] {
                lua_State* state = function.state();
                function.push();
                call(state, 0, 1);
                at::Tensor result = check_tensor(state, -1);
                lua_pop(state, 1);
                return result;
              }));
  return 1;
}

}  // namespace redco::lua
