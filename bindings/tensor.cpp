#include "tensor.h"

#include "context.h"
#include "values.h"

#include <redco/sharding.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace redco::lua {

namespace {

// A boxed object starts with a tag of its type: cheaper to check than a metatable, and the same
// in every state.
template <class T>
struct Box {
  uint64_t tag;
  T value;
};

constexpr uint64_t tensor_tag = 0x7265646354656e73;
constexpr uint64_t generator_tag = 0x7265646347656e72;

template <class T>
void push_box(lua_State* L, uint64_t tag, RegistrySlot metatable, T value) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, metatable);
  if (lua_isnil(L, -1)) {  // a host may give the state a tensor before any script asks for one
    lua_pop(L, 1);
    lua_getfield(L, LUA_GLOBALSINDEX, "require");
    lua_pushliteral(L, "redco.torch");
    lua_call(L, 1, 0);
    lua_rawgeti(L, LUA_REGISTRYINDEX, metatable);
  }
  // Nothing can fail between the making of the box and its metatable, which frees it.
  new (lua_newuserdata(L, sizeof(Box<T>))) Box<T>{tag, std::move(value)};
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
}

template <class T>
T* test_box(lua_State* L, int index, uint64_t tag) {
  auto* box = static_cast<Box<T>*>(lua_touserdata(L, index));
  bool may_be = box != nullptr && lua_objlen(L, index) == sizeof(Box<T>);
  return may_be && box->tag == tag ? &box->value : nullptr;
}

}  // namespace

void push_tensor(lua_State* L, at::Tensor tensor, int64_t fresh_bytes) {
  if (!tensor.defined()) {
    lua_pushnil(L);
    return;
  }
  if (fresh_bytes > 0) count_tensor_bytes(L, fresh_bytes);
  push_box(L, tensor_tag, slot_tensor_metatable, std::move(tensor));
}

void push_tensor(lua_State* L, at::Tensor tensor) {
  int64_t bytes = 0;
  const at::Tensor& memory = memory_of(tensor);
  if (memory.defined() && memory.has_storage() && memory.storage().use_count() == 1)
    bytes = static_cast<int64_t>(memory.storage().nbytes());
  push_tensor(L, std::move(tensor), bytes);
}

at::Tensor* test_tensor(lua_State* L, int index) {
  return test_box<at::Tensor>(L, index, tensor_tag);
}

at::Tensor& check_tensor(lua_State* L, int index) {
  at::Tensor* tensor = test_tensor(L, index);
  require(tensor != nullptr, "argument ", index, ": expected a Tensor, got ", described(L, index));
  return *tensor;
}

void push_generator(lua_State* L, at::Generator generator) {
  push_box(L, generator_tag, slot_generator_metatable, std::move(generator));
}

at::Generator* test_generator(lua_State* L, int index) {
  return test_box<at::Generator>(L, index, generator_tag);
}

void count_tensor_bytes(lua_State* L, int64_t bytes) {
  constexpr int64_t quantum = 1 << 20;
  Context& ctx = context(L);
  ctx.debt += bytes;
  if (ctx.debt < quantum) return;
  // A cycle of the collector walks the whole Lua heap. It is spread over an allowance of tensor
  // bytes: at least 8 MB, which a cache may hold, and more for a large heap, or walking it would
  // cost more than it frees.
  int64_t heap_kb = lua_gc(L, LUA_GCCOUNT, 0);
  int64_t allowance = std::max<int64_t>(int64_t{8} << 20, heap_kb * 1024 * 8);
  double step_kb = static_cast<double>(heap_kb) *
                   (static_cast<double>(ctx.debt) / static_cast<double>(allowance));
  ctx.debt = 0;
  lua_gc(L, LUA_GCSTEP, static_cast<int>(std::clamp(step_kb, 1.0, 1e9)));
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: can't allocate memory") != nullptr ||
         std::strstr(error.what(), "DefaultCPUAllocator: not enough memory") != nullptr;
}

}  // namespace redco::lua
