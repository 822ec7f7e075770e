// torch.save, torch.load, torch.frombuffer.
#include <redco/safetensors.h>

#include "state/arguments.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>

#include <cstring>
#include <string>

namespace redco::lua {

namespace {

int save(lua_State* L) {
  require(lua_type(L, 2) == LUA_TSTRING,
          "torch.save: expected a value and the path of a file, got ", described(L, 1), " and ",
          described(L, 2));
  save_tree(lua_tostring(L, 2), check_tree(L, 1));
  return 0;
}

int load_file(lua_State* L) {
  require(lua_type(L, 1) == LUA_TSTRING, "torch.load: expected the path of a file, got ",
          described(L, 1));
  push_tree(L, load_tree(lua_tostring(L, 1)));
  return 1;
}

int frombuffer(lua_State* L) {
  require(lua_type(L, 1) == LUA_TSTRING && lua_istable(L, 2),
          "torch.frombuffer: expected a string and {dtype, count, offset}, got ", described(L, 1),
          " and ", described(L, 2));
  NamedArguments args(L, 2, "torch.frombuffer");
  auto dtype = args.required<c10::ScalarType>("dtype");
  auto length = int64_t(lua_objlen(L, 1));
  auto size = int64_t(c10::elementSize(dtype));
  auto offset = args.get<int64_t>("offset", 0);
  require(offset >= 0 && offset <= length, "torch.frombuffer: offset ", offset,
          " is outside the string of ", length, " bytes");
  auto count = args.get<int64_t>("count", (length - offset) / size);
  args.finish();
  require(count >= 0 && count <= (length - offset) / size, "torch.frombuffer: ", count, " ",
          dtype_name(dtype), " from byte ", offset, " on are more than the string of ", length,
          " bytes has");
  at::Tensor tensor = at::empty({count}, dtype);
  if (count > 0) std::memcpy(tensor.data_ptr(), lua_tostring(L, 1) + offset, size_t(count * size));
  push_tensor(L, std::move(tensor));
  return 1;
}

}  // namespace

void add_storage(lua_State* L) {
  register_functions(
      L, "torch.",
      {{"save", save,
        "save(value, path)\n"
        "Writes a tensor, or a tree of tensors, numbers, strings and booleans, as one "
        "safetensors file. An existing file is replaced when the new one is complete. Sharded "
        "tensors are written whole by the first process; every process must call it."},
       {"load", load_file,
        "load(path) -> value\n"
        "Reads a file that torch.save wrote. Any other safetensors file becomes a table of its "
        "tensors by name. Files of PyTorch's torch.save are read if they have only tensors, "
        "numbers, texts, booleans and None in dictionaries (with texts as keys), lists and tuples: "
        "any function in them is an error that names it, and is never run. Tensors are "
        "memory-mapped and read on use, so do not change the file "
        "meanwhile: write a new one and rename it. In redco-lua, using a tensor of a truncated "
        "file raises an error."},
       {"frombuffer", frombuffer,
        "frombuffer(string, {dtype, count = nil, offset = 0}) -> Tensor [count]\n"
        "Returns a one-dimensional tensor of the bytes of a string, from `offset` on: `count` "
        "elements, or all. Bytes are in the machine's order."}});
}

}  // namespace redco::lua
