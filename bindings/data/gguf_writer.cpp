// Writing of GGUF files: redco.native.gguf_writer.
#include "gguf_writer.h"

#include "lua_tokenizer.h"
#include "state/collector.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/sharding.h"

#include <redco/error.h>
#include <redco/gguf.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

struct WriterObject {
  static constexpr const char* lua_name = "GgufWriter";
  std::unique_ptr<GgufWriter> writer;  ///< null once it is closed
};

// Pushes each entry of the list at `index` and calls `read` with its stack index.
template <class Read>
void for_each_entry(lua_State* L, int index, const Read& read) {
  luaL_checktype(L, index, LUA_TTABLE);
  for (int i = 1; i <= int(lua_objlen(L, index)); ++i) {
    lua_rawgeti(L, index, i);
    read(lua_gettop(L));
    lua_pop(L, 1);
  }
}

std::string text_at(lua_State* L, int table, int place) {
  lua_rawgeti(L, table, place);
  size_t length = 0;
  const char* text = luaL_checklstring(L, -1, &length);
  std::string result(text, length);
  lua_pop(L, 1);
  return result;
}

int gguf_writer(lua_State* L) {
  const std::string path = luaL_checkstring(L, 1);
  std::vector<GgufValue> metadata;
  for_each_entry(L, 2, [&](int entry) {
    lua_rawgeti(L, entry, 3);
    Tree value = check_tree(L, lua_gettop(L), "gguf_writer: a value");
    lua_pop(L, 1);
    metadata.push_back({text_at(L, entry, 1), text_at(L, entry, 2), std::move(value)});
  });
  std::vector<GgufTensor> tensors;
  for_each_entry(L, 3, [&](int entry) {
    GgufTensor tensor{text_at(L, entry, 1), text_at(L, entry, 2), {}};
    lua_rawgeti(L, entry, 3);
    const int shape = lua_gettop(L);
    for (int i = 1; i <= int(lua_objlen(L, shape)); ++i) {
      lua_rawgeti(L, shape, i);
      tensor.shape.push_back(check_integer(L, -1, "gguf_writer: a size"));
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
    tensors.push_back(std::move(tensor));
  });
  if (!lua_isnoneornil(L, 4)) {
    auto object = check_object<LuaTokenizer>(L, 4, "gguf_writer: tokenizer");
    std::shared_lock lock(object->mutex);
    for (GgufValue& value : gguf_tokenizer(object->tokenizer, luaL_checkinteger(L, 5)))
      metadata.push_back(std::move(value));
  }
  auto object = std::make_shared<WriterObject>();
  object->writer =
      std::make_unique<GgufWriter>(path, metadata, std::move(tensors), current_mesh(L));
  push_object(L, std::move(object));
  return 1;
}

GgufWriter& open_writer(const WriterObject& object) {
  require(object.writer != nullptr, "GgufWriter: the file is closed");
  return *object.writer;
}

int add(lua_State* L) {
  auto object = check_object<WriterObject>(L, 1, "GgufWriter:add");
  open_writer(*object).add(check_tensor(L, 2));
  return 0;
}

int commit(lua_State* L) {
  auto object = check_object<WriterObject>(L, 1, "GgufWriter:commit");
  open_writer(*object).commit();
  object->writer.reset();
  return 0;
}

int close(lua_State* L) {
  check_object<WriterObject>(L, 1, "GgufWriter:close")->writer.reset();
  return 0;
}

}  // namespace

void add_gguf_writer(lua_State* L) {
  make_object_type<WriterObject>(
      L,
      "GgufWriter {}\n"
      "A model file of llama.cpp that is being written.",
      {{"add", add,
        "add(self, part: Tensor)\n"
        "Appends the next tensor, or a part of it along the first dimension. All processes gather "
        "one that is sharded."},
       {"commit", commit,
        "commit(self)\n"
        "Gives the complete file its name."},
       {"close", close,
        "close(self)\n"
        "Removes what is written, unless it was committed."}});
  register_functions(
      L, "redco.native.",
      {{"gguf_writer", gguf_writer,
        "gguf_writer(path, metadata: list, tensors: list, tokenizer: Tokenizer = nil, n_tokens: "
        "integer = nil) -> GgufWriter\n"
        "Begins a model file of llama.cpp: {key, type, value} of metadata and {name, type, shape} "
        "of tensors, which are added in this order. Every process must call it."}});
}

}  // namespace redco::lua
