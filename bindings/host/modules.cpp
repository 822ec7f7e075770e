// The Lua modules of a state: native ones, embedded Lua files, and the globals of scripts.

#include "modules.h"

#include "data/data_files.h"
#include "data/decoders.h"
#include "data/gguf_writer.h"
#include "data/grammar.h"
#include "data/http.h"
#include "data/hub.h"
#include "data/table_order.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "data/weights.h"
#include "state/context.h"
#include "state/habits.h"
#include "state/null.h"
#include "state/options.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/kernels.h"
#include "torch/recompute.h"
#include "torch/sharding.h"
#include "torch/torch.h"
#include "training/optim.h"
#include "training/training_objects.h"

#include <redco/detail/check_stop.h>
#include <redco/detail/notices.h>
#include <redco/error.h>
#include <redco/mesh.h>
#include <redco/run_log.h>
#include <redco/sharding.h>
#include <redco/version.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redco::lua {

namespace {

struct NativeModule {
  const char* name;
  lua_CFunction open;
};

int load_embedded(lua_State* L) {
  const auto* file = static_cast<const EmbeddedFile*>(lua_touserdata(L, lua_upvalueindex(1)));
  std::string chunk = std::string("=") + file->path;
  if (luaL_loadbufferx(L, file->text, std::strlen(file->text), chunk.c_str(), "t") != 0)
    throw take_error(L);
  lua_pushvalue(L, LUA_ENVIRONINDEX);
  lua_setfenv(L, -2);
  lua_pushstring(L, file->name);
  lua_call(L, 1, 1);
  return 1;
}

int nearest_name(lua_State* L) {
  std::string word = luaL_checkstring(L, 1);
  std::vector<std::string> names;
  for (int i = 1; i <= int(lua_objlen(L, 2)); ++i) {
    lua_rawgeti(L, 2, i);
    names.push_back(luaL_checkstring(L, -1));
    lua_pop(L, 1);
  }
  // Among equally near names, prefers those with the same first letter in the same case.
  std::ranges::stable_partition(
      names, [&](const std::string& name) { return name.substr(0, 1) == word.substr(0, 1); });
  std::string near = nearest(word, names);
  if (near.empty()) return 0;
  lua_pushstring(L, near.c_str());
  return 1;
}

// embedded(name) -> the text of an embedded Lua file, nil if there is none of that name.
int embedded_text(lua_State* L) {
  std::string name = luaL_checkstring(L, 1);
  for (int i = 0; i < n_embedded_files; ++i) {
    if (name != embedded_files[i].name) continue;
    lua_pushstring(L, embedded_files[i].text);
    return 1;
  }
  return 0;
}

// embedded_modules(prefix) -> the sorted list of the names of embedded files that start with the
// prefix, without the prefix.
int embedded_modules(lua_State* L) {
  const std::string_view prefix = luaL_checkstring(L, 1);
  lua_newtable(L);
  for (int i = 0, n = 0; i < n_embedded_files; ++i) {
    std::string_view name = embedded_files[i].name;
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    lua_pushlstring(L, name.data(), name.size());
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

// The wrapper of C functions adds the script line to the message.
int fail_at_script(lua_State* L) { throw Error(luaL_checkstring(L, 1)); }

// notice(text): shows it to the user, on the first process of the run
int show_notice(lua_State* L) {
  const char* text = luaL_checkstring(L, 1);
  std::shared_ptr<const Mesh> mesh = current_mesh(L);
  const int64_t rank = mesh ? mesh->processes().rank : find_processes({}).rank;
  if (rank == 0) notice(text);
  return 0;
}

// try(f, ...) -> true, results, or false, message, traceback. Unlike pcall, it also has the
// traceback of an error that passed through C++.
int try_call(lua_State* L) {
  try {
    call(L, lua_gettop(L) - 1, LUA_MULTRET);
    lua_pushboolean(L, 1);
    lua_insert(L, 1);
    return lua_gettop(L);
  } catch (const ScriptError& error) {
    if (error.kind() == ScriptError::Kind::stopped) throw;
    lua_settop(L, 0);
    lua_pushboolean(L, 0);
    lua_pushstring(L, error.what());
    lua_pushstring(L, error.traceback().c_str());
    return 3;
  }
}

// advice_on_syntax(message, code) -> text to append to the message of a syntax error, or ""
int syntax_advice(lua_State* L) {
  lua_pushstring(L, advice_on_syntax(luaL_checkstring(L, 1), luaL_checkstring(L, 2)).c_str());
  return 1;
}

// advice_on_name(name) -> text to append to a message about an undeclared name, or ""
int name_advice(lua_State* L) {
  lua_pushstring(L, advice_on_name(luaL_checkstring(L, 1)).c_str());
  return 1;
}

// advice_on_field(name) -> text to append to a message about an unknown field, or ""
int field_advice(lua_State* L) {
  lua_pushstring(L, advice_on_field(luaL_checkstring(L, 1)).c_str());
  return 1;
}

// describe(value) -> a short text for messages: "Tensor float32[2, 3]", "number 1.5", "redco.Rng"
int described_value(lua_State* L) {
  lua_pushstring(L, describe(L, 1).c_str());
  return 1;
}

// whole_on_shards(x) -> x, gathered over the processes that share a copy of the model
int whole_on_shards(lua_State* L) {
  const at::Tensor& tensor = check_tensor(L, 1);
  Placements placements = placements_of(tensor);
  placements[Mesh::dim_of(Mesh::model)] = {};
  about_to_read(tensor);
  push_tensor(L, is_sharded(tensor) ? redistribute(tensor, placements) : tensor);
  return 1;
}

// check_stop(): ends a loop of an evaluation if the run is to end
int check_stop_of_run(lua_State*) {
  check_stop();
  return 0;
}

// Functions for this library's Lua files only.
constexpr luaL_Reg internal_functions[] = {
    {"fail", fail_at_script},
    {"notice", show_notice},
    {"nearest", nearest_name},
    {"advice_on_name", name_advice},
    {"advice_on_field", field_advice},
    {"advice_on_syntax", syntax_advice},
    {"describe", described_value},
    {"embedded", embedded_text},
    {"embedded_modules", embedded_modules},
    {"check_stop", check_stop_of_run},
    {"try", try_call},
    {"without_cudnn_attention", without_cudnn_attention},
    {"captured", captured},
    {"device_type", device_type},
    {"is_recomputing", is_recomputing},
    {"checkpoint_block", checkpoint_block},
    {"keep_results_of", keep_results_of},
    {"begins_recomputed_block", begins_recomputed_block},
    {"check_recompute", check_recompute},
    {"with_recomputed_blocks", with_recomputed_blocks},
    {"whole_on_shards", whole_on_shards},
    {nullptr, nullptr},
};

int open_redco(lua_State* L) {
  lua_newtable(L);
  luaL_register(L, nullptr, internal_functions);
  add_kernels(L);
  lua_pushliteral(L, REDCO_VERSION);
  lua_setfield(L, -2, "version");
  add_decoders(L);
  push_null(L);
  lua_setfield(L, -2, "null");
  add_ordered_tables(L);
  add_data_files(L);
  register_functions(
      L, "redco.",
      {{"checkpoint", checkpoint,
        "checkpoint(f, ...) -> what f returns\n"
        "Calls f(...) and keeps only its arguments for the backward pass, which runs f again with "
        "the same random numbers. This saves memory and takes more time. f must compute the same "
        "both times. A tensor that it reads must not be written in place before backward has run: "
        "that is an error, and so is a write of f to a tensor that exists outside of it."},
       {"options", options,
        "options(defaults) -> table\n"
        "Returns the defaults, changed first by a TOML file and then by the script's arguments "
        "--key=value, --table.key=value, --flag, --no-flag. The file is --config=FILE, else "
        "NAME.toml in the folder of NAME.lua, else config.toml there. Values have the types of "
        "the defaults; an unknown key is an error that names the nearest one. If the result has a "
        "`workdir`, the result is written to config.toml there."}});
  add_rng(L);
  add_deployer(L);
  add_trainer(L);
  add_micro_batches(L);
  add_calls(L);
  add_predictor(L);
  add_sharding(L);
  add_weights(L);
  add_gguf_writer(L);
  add_tokenizer(L);
  add_unicode(L);
  add_grammar(L);
  add_http(L);
  add_hub(L);
  return 1;
}

int show_line(lua_State* L) {
  size_t size;
  const char* text = luaL_checklstring(L, 1, &size);
  if (const auto& console = context(L).console) console->line({text, size});
  return 0;
}

int call_upvalue(lua_State* L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

// Wraps a function so that it counts instructions: LuaJIT's own functions bypass the wrapper of C
// functions.
int counted_call(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_pushcclosure(L, call_upvalue, 1);
  return 1;
}

// The native modules, which the embedded Lua files build on.
constexpr NativeModule native_modules[] = {
    {"redco.registry", open_registry},   {"redco.torch.native", open_torch},
    {"redco.functorch", open_functorch}, {"redco.native", open_redco},
    {"redco.optim", open_optim},
};

// A copy of the globals for this library's Lua files, since a script or a prompt may assign names
// such as `type` and `table`.
void push_own_globals(lua_State* L) {
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawseti(L, LUA_REGISTRYINDEX, slot_own_globals);
  for (lua_pushnil(L); lua_next(L, LUA_GLOBALSINDEX) != 0;) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -4);
  }
}

}  // namespace

void open_modules(lua_State* L) {
  open_values(L);
  open_pairs(L);
  push_own_globals(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  for (const NativeModule& module : native_modules) {
    lua_pushcfunction(L, module.open);
    lua_setfield(L, -2, module.name);
  }
  for (int i = 0; i < n_embedded_files; ++i) {
    lua_pushlightuserdata(L, const_cast<EmbeddedFile*>(&embedded_files[i]));
    lua_pushcclosure(L, load_embedded, 1);
    lua_pushvalue(L, -4);  // the copy
    lua_setfenv(L, -2);
    lua_setfield(L, -2, embedded_files[i].name);
  }
  lua_pop(L, 3);
}

void restrict_globals(lua_State* L) {
  context(L).is_restricted = true;
  lua_getglobal(L, "require");
  lua_pushliteral(L, "redco.restricted");
  lua_call(L, 1, 1);
  lua_pushcfunction(L, show_line);
  lua_pushcfunction(L, take_instructions);
  lua_pushcfunction(L, counted_call);
  lua_call(L, 3, 1);
  lua_replace(L, LUA_GLOBALSINDEX);
}

}  // namespace redco::lua
