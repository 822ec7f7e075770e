// Weight files for the models: redco.native.open_weights, save_weights, open_gguf; other files.
#include "weights.h"

#include "state/arguments.h"
#include "state/collector.h"
#include "state/context.h"
#include "state/object.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/sharding.h"

#include <redco/detail/write_file.h>
#include <redco/error.h>
#include <redco/gguf.h>
#include <redco/tensor_source.h>
#include <redco/weights.h>

#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace redco::lua {

namespace {

struct WeightsObject : Weights {
  static constexpr const char* lua_name = "Weights";
  using Weights::Weights;
};

struct GgufObject : GgufFile {
  static constexpr const char* lua_name = "GgufFile";
  using GgufFile::GgufFile;
};

constexpr std::pair<const char*, double> units[] = {
    {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};

// "5GB" or a number of bytes. The units are powers of ten, as in transformers.
int64_t check_bytes(NamedArguments& args, const char* name, int64_t fallback) {
  lua_State* L = args.state();
  args.push(name);
  int64_t bytes = fallback;
  if (auto number = test_integer(L, -1)) {
    bytes = *number;
  } else if (!lua_isnil(L, -1)) {
    const std::string text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    double count = 0;
    const char* end = std::from_chars(text.data(), text.data() + text.size(), count).ptr;
    std::string unit(end, text.data() + text.size());
    double scale = 0;
    for (const auto& [known, size] : units)
      if (unit == known) scale = size;
    require(scale > 0 && count * scale >= 1 && count * scale < 9e18, args.function(), ": ", name,
            ": expected a number of bytes or a text like \"5GB\" or \"200MB\", got ",
            described(L, lua_gettop(L)));
    bytes = int64_t(std::llround(count * scale));
  }
  lua_pop(L, 1);
  return bytes;
}

std::map<std::string, at::Tensor> check_tensors(lua_State* L, int index, const char* function) {
  require(lua_istable(L, index), function, ": expected a table of tensors by name, got ",
          described(L, index));
  std::map<std::string, at::Tensor> tensors;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    require(lua_type(L, -2) == LUA_TSTRING, function, ": expected names as keys, got ",
            described(L, lua_gettop(L) - 1));
    const at::Tensor* tensor = test_tensor(L, -1);
    require(tensor != nullptr, function, ": params[\"", lua_tostring(L, -2),
            "\"]: expected a Tensor, got ", described(L, lua_gettop(L)));
    size_t length = 0;
    const char* name = lua_tolstring(L, -2, &length);
    tensors.emplace(std::string(name, length), *tensor);
  }
  return tensors;
}

std::map<std::string, std::string> check_texts(NamedArguments& args, const char* name) {
  std::map<std::string, std::string> texts;
  auto given = args.optional<Tree>(name);
  if (!given) return texts;
  require(given->is<Tree::Dict>(), args.function(), ": ", name, ": expected a table of texts");
  for (const auto& [key, value] : given->as<Tree::Dict>()) {
    require(value.is<std::string>(), args.function(), ": ", name, ".", key, ": expected a text");
    texts[key] = value.as<std::string>();
  }
  return texts;
}

template <class T>
int keys(lua_State* L) {
  auto file = check_object<T>(L, 1, std::string(T::lua_name) + ":keys");
  std::vector<std::string> names = file->keys();
  lua_createtable(L, int(names.size()), 0);
  for (size_t i = 0; i < names.size(); ++i) {
    lua_pushlstring(L, names[i].data(), names[i].size());
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

// Reads the object and the tensor name from the arguments of a method.
template <class T>
std::pair<std::shared_ptr<T>, std::string> check_named(lua_State* L, const char* method) {
  std::string what = std::string(T::lua_name) + ":" + method;
  auto file = check_object<T>(L, 1, what);
  require(lua_type(L, 2) == LUA_TSTRING, what, ": expected the name of a tensor, got ",
          described(L, 2));
  size_t length = 0;
  const char* name = lua_tolstring(L, 2, &length);
  return {std::move(file), std::string(name, length)};
}

template <class T>
int shape(lua_State* L) {
  auto [file, name] = check_named<T>(L, "shape");
  const std::vector<int64_t>& sizes = file->shape(name);
  lua_createtable(L, int(sizes.size()), 0);
  for (size_t i = 0; i < sizes.size(); ++i) {
    push_integer(L, sizes[i]);
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

template <class T>
int dtype(lua_State* L) {
  auto [file, name] = check_named<T>(L, "dtype");
  lua_pushstring(L, dtype_name(file->dtype(name)));
  return 1;
}

int mapped_tensor(lua_State* L) {
  auto [file, name] = check_named<WeightsObject>(L, "tensor");
  push_tensor(L, file->tensor(name));
  return 1;
}

int dequantized_tensor(lua_State* L) {
  auto [file, name] = check_named<GgufObject>(L, "tensor");
  push_tensor(L,
              with_memory_retry(L, [&, &file = file, &name = name] { return file->tensor(name); }));
  return 1;
}

// Fields other than methods.
template <class T>
int field(lua_State* L) {
  auto file = check_object<T>(L, 1, T::lua_name);
  std::string name = luaL_checkstring(L, 2);
  if (name == "path") {
    lua_pushstring(L, file->path().c_str());
    return 1;
  }
  if constexpr (std::is_same_v<T, GgufObject>)
    if (name == "metadata") {
      push_tree(L, file->metadata());
      return 1;
    }
  return 0;
}

template <class T>
int open(lua_State* L) {
  require(lua_type(L, 1) == LUA_TSTRING, "expected the path of the file, got ", described(L, 1));
  push_object(L, std::make_shared<T>(lua_tostring(L, 1)));
  return 1;
}

int packed_tensor(lua_State* L) {
  auto [file, name] = check_named<GgufObject>(L, "blocks");
  const char* type = file->quantized_type(name);
  if (type == nullptr) return 0;
  push_tensor(L, file->blocks(name));
  lua_pushstring(L, type);
  return 2;
}

template <class T>
void make_reader_type(lua_State* L, const char* type_text, lua_CFunction tensor, const char* text) {
  make_object_type<T>(L, type_text,
                      {{"keys", keys<T>,
                        "keys(self) -> list of strings\n"
                        "Returns the names of the tensors in byte order."},
                       {"shape", shape<T>,
                        "shape(self, name) -> list of integers\n"
                        "Returns the sizes of a tensor without reading it."},
                       {"dtype", dtype<T>,
                        "dtype(self, name) -> string\n"
                        "Returns the element type of a tensor, \"float32\"."},
                       {"tensor", tensor, text}},
                      field<T>);
}

int save_weights(lua_State* L) {
  require(lua_type(L, 1) == LUA_TSTRING, "save_weights: expected the path of a folder, got ",
          described(L, 1));
  std::map<std::string, at::Tensor> tensors = check_tensors(L, 2, "save_weights");
  SaveWeightsOptions options;
  if (!lua_isnoneornil(L, 3)) {
    NamedArguments args(L, 3, "save_weights");
    options.stem = args.optional<std::string>("stem").value_or(options.stem);
    options.max_shard_size = check_bytes(args, "max_shard_size", options.max_shard_size);
    options.metadata = check_texts(args, "metadata");
    options.texts = check_texts(args, "texts");
    args.finish();
  }
  redco::save_weights(lua_tostring(L, 1), tensors, options, current_mesh(L));
  return 0;
}

int set_source(lua_State* L) {
  redco::set_source(check_tensor(L, 1), {luaL_checkstring(L, 2), luaL_checkstring(L, 3)});
  return 0;
}

int source_of(lua_State* L) {
  auto source = redco::source_of(check_tensor(L, 1));
  if (!source) return 0;
  lua_pushstring(L, source->path.c_str());
  lua_pushstring(L, source->name.c_str());
  return 2;
}

int is_same(lua_State* L) {
  lua_pushboolean(L, check_tensor(L, 1).is_same(check_tensor(L, 2)));
  return 1;
}

int write_texts(lua_State* L) {
  require(lua_type(L, 1) == LUA_TSTRING, "write_texts: expected the path of a folder, got ",
          described(L, 1));
  NamedArguments args(L, 2, "write_texts");
  std::map<std::string, std::string> texts = check_texts(args, "texts");
  args.finish();
  redco::write_texts(lua_tostring(L, 1), texts, current_mesh(L));
  return 0;
}

int lua_write_file(lua_State* L) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, 2, &size);
  try {
    write_file(luaL_checkstring(L, 1), {bytes, size});
  } catch (const Error& error) {
    lua_pushnil(L);
    lua_pushstring(L, error.what());
    return 2;
  }
  lua_pushboolean(L, true);
  return 1;
}

}  // namespace

void add_weights(lua_State* L) {
  make_reader_type<WeightsObject>(
      L,
      "Weights {path}\n"
      "The weights of a model folder, by name.",
      mapped_tensor,
      "tensor(self, name) -> Tensor\n"
      "Returns a tensor in the memory-mapped file, which is read on use. Writing to the "
      "tensor does not change the file. A copy of it, where the file does not align the tensor.");
  make_reader_type<GgufObject>(
      L,
      "GgufFile {path, metadata}\n"
      "A model file of llama.cpp.",
      dequantized_tensor,
      "tensor(self, name) -> Tensor\n"
      "Returns a tensor as PyTorch stores it: quantised values become float32, others are "
      "memory-mapped.");
  register_functions(
      L, "redco.native.",
      {{"open_weights", open<WeightsObject>,
        "open_weights(path) -> Weights\n"
        "Opens the weights of a model folder, `model.safetensors` or the files that "
        "`model.safetensors.index.json` lists, or without them those of `pytorch_model.bin`; or "
        "one such file. `path` is a field of the result."},
       {"open_gguf", open<GgufObject>,
        "open_gguf(path) -> GgufFile\n"
        "Opens a model file of llama.cpp. "
        "The fields of the result are `path` and `metadata`, a table of numbers, strings, "
        "booleans and lists by key."},
       {"gguf_blocks", packed_tensor,
        "gguf_blocks(file: GgufFile, name) -> Tensor, string\n"
        "Returns the blocks of a quantised tensor as they are in the file, memory-mapped, and "
        "their "
        "type (redco.quant.types); nil for another tensor."},
       {"save_weights", save_weights,
        "save_weights(folder, params, {stem = \"model\", max_shard_size = \"5GB\", metadata, "
        "texts})\n"
        "Writes a table of tensors by name as the safetensors of a model folder, in several "
        "files with an index above max_shard_size. Sharded tensors are written whole, one after "
        "the other, by the first process; every process must call it. At every moment the "
        "folder has either the earlier weights or the new ones. `stem` is the beginning of the "
        "file names; `texts` are other files, by name."},
       {"set_source", set_source,
        "set_source(tensor, path, name)\n"
        "Notes that a parameter has the values of the tensor `name` in the weights `path`, perhaps "
        "in another dtype. An empty name: it is new, and in no file."},
       {"source_of", source_of,
        "source_of(tensor) -> string, string\n"
        "Returns the path and name that `set_source` noted; nil without them, or if the tensor has "
        "been written in place since."},
       {"is_same", is_same,
        "is_same(tensor, other) -> boolean\n"
        "Returns whether both are one tensor object: `==` compares values, and views are others."},
       {"write_texts", write_texts,
        "write_texts(folder, {texts})\n"
        "Writes text files by name into a folder, which is created if necessary. Only the first "
        "process writes; every process must call it."},
       {"write_file", lua_write_file,
        "write_file(path, bytes) -> true, or nil and string\n"
        "Writes a file of this process. An earlier file of this name is replaced at once, or kept "
        "if the new one can't be written; then it returns nil and the reason."}});
}

}  // namespace redco::lua
