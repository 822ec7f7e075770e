// Tensors and generators as Lua values.

#include "state/tensor.h"

#include "state/collector.h"
#include "state/context.h"
#include "state/values.h"

#include <redco/error.h>
#include <redco/sharding.h>

#include <new>
#include <string>

namespace redco::lua {

namespace {

// An object with a type tag in front: cheaper to check than a metatable, and the same in every
// state.
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
  if (lua_isnil(L, -1)) {  // the program may push a tensor before any script uses the module
    lua_pop(L, 1);
    lua_getfield(L, LUA_GLOBALSINDEX, "require");
    lua_pushliteral(L, "redco.torch");
    lua_call(L, 1, 0);
    lua_rawgeti(L, LUA_REGISTRYINDEX, metatable);
  }
  // Nothing may fail between the creation of the box and setting its metatable, which frees it.
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
  if (fresh_bytes > 0) count_tensor_bytes(L, tensor.device(), fresh_bytes);
  push_box(L, tensor_tag, slot_tensor_metatable, std::move(tensor));
}

void push_tensor(lua_State* L, at::Tensor tensor) {
  int64_t bytes = 0;
  const at::Tensor& memory = held_memory_of(tensor);
  if (memory.defined() && memory.has_storage() && memory.storage().use_count() == 1)
    bytes = int64_t(memory.storage().nbytes());
  push_tensor(L, std::move(tensor), bytes);
}

at::Tensor* test_tensor(lua_State* L, int index) {
  return test_box<at::Tensor>(L, index, tensor_tag);
}

// The name of the function that runs if it is a method of tensors, else "".
static std::string running_method(lua_State* L) {
  lua_Debug frame;
  std::string name;
  if (!lua_getstack(L, 0, &frame) || !lua_getinfo(L, "f", &frame)) return name;
  lua_rawgeti(L, LUA_REGISTRYINDEX, slot_tensor_metatable);
  lua_getfield(L, -1, "methods");
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
    if (lua_rawequal(L, -1, -5) && lua_type(L, -2) == LUA_TSTRING) name = lua_tostring(L, -2);
  lua_pop(L, 3);
  return name;
}

at::Tensor& check_tensor(lua_State* L, int index) {
  at::Tensor* tensor = test_tensor(L, index);
  if (std::string method; tensor == nullptr && index == 1 && !(method = running_method(L)).empty())
    fail("Tensor:", method, ": expected a Tensor, got ", described(L, index),
         "; a method is called with a colon: tensor:", method, "(...)");
  require(tensor != nullptr, "argument ", index, ": expected a Tensor, got ", described(L, index));
  return *tensor;
}

void push_generator(lua_State* L, at::Generator generator) {
  push_box(L, generator_tag, slot_generator_metatable, std::move(generator));
}

at::Generator* test_generator(lua_State* L, int index) {
  return test_box<at::Generator>(L, index, generator_tag);
}

}  // namespace redco::lua
