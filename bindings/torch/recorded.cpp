// Functions whose work on a GPU is recorded once and replayed.

#include "torch.h"

#include "state/context.h"
#include "state/object.h"
#include "state/tensor.h"

#include <redco/detail/recorded_calls.h>

#include <memory>

namespace redco::lua {

namespace {

struct RecordedFunction : RecordedCalls {
  static constexpr const char* lua_name = "RecordedFunction";
  using RecordedCalls::RecordedCalls;
};

int run(lua_State* L) {
  push_tensor(L, (*check_object<RecordedFunction>(L, 1, "RecordedFunction:run"))());
  return 1;
}

}  // namespace

void make_recorded_type(lua_State* L) {
  make_object_type<RecordedFunction>(
      L, "RecordedFunction {}\nA function whose work on a GPU is recorded once and replayed.",
      {{"run", run, "run() -> Tensor\nReturns the function's result."}});
}

int recorded(lua_State* L) {
  const at::Device device = check_tensor(L, 1).device();
  const Ref function(L, 2);
  push_object(L, std::make_shared<RecordedFunction>(device, [function] {
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
