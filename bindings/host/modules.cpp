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
#include "state/collector.h"
#include "state/context.h"
#include "state/habits.h"
#include "state/null.h"
#include "state/options.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"
#include "torch/quantized.h"
#include "torch/recompute.h"
#include "torch/sharding.h"
#include "torch/torch.h"
#include "training/optim.h"
#include "training/training_objects.h"

#include <redco/detail/check_stop.h>
#include <redco/detail/few_queries.h>
#include <redco/detail/notices.h>
#include <redco/dropout.h>
#include <redco/error.h>
#include <redco/grouped_linear.h>
#include <redco/linear.h>
#include <redco/linear_cross_entropy.h>
#include <redco/mesh.h>
#include <redco/rotary.h>
#include <redco/run_log.h>
#include <redco/segment_attention.h>
#include <redco/sharding.h>
#include <redco/silu_mul.h>
#include <redco/version.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
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
  // Of names that are as near, those with the same first letter, capital or small.
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

// embedded_modules(prefix) -> the sorted list of what follows the prefix in names of embedded
// files.
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

std::optional<at::Tensor> optional_tensor(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return std::nullopt;
  return check_tensor(L, index);
}

std::optional<double> optional_number(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return std::nullopt;
  return luaL_checknumber(L, index);
}

int linear_layer(lua_State* L) {
  at::Tensor bias = lua_isnoneornil(L, 3) ? at::Tensor() : check_tensor(L, 3);
  push_tensor(L, with_memory_retry(
                     L, [&] { return linear(check_tensor(L, 1), check_tensor(L, 2), bias); }));
  return 1;
}

// dropout(x, p, generator)
int fused_dropout(lua_State* L) {
  const at::Generator* rng = test_generator(L, 3);
  require(rng != nullptr, "nn.dropout: expected a Generator as rng, got ", describe(L, 3));
  about_to_draw(*rng);
  push_tensor(L, with_memory_retry(
                     L, [&] { return dropout(check_tensor(L, 1), luaL_checknumber(L, 2), *rng); }));
  return 1;
}

int fused_linear_cross_entropy(lua_State* L) {
  const std::optional<at::Tensor> bias = optional_tensor(L, 6);
  push_tensor(L, with_memory_retry(L, [&] {
                return linear_cross_entropy(check_tensor(L, 1), check_tensor(L, 2),
                                            check_tensor(L, 3), check_integer(L, 4, "ignore_index"),
                                            luaL_checknumber(L, 5), bias);
              }));
  return 1;
}

int fused_linear_logprobs(lua_State* L) {
  const std::optional<at::Tensor> bias = optional_tensor(L, 5);
  push_tensor(L, with_memory_retry(L, [&] {
                return linear_logprobs(check_tensor(L, 1), check_tensor(L, 2), check_tensor(L, 3),
                                       check_integer(L, 4, "ignore_index"), bias);
              }));
  return 1;
}

std::optional<int64_t> optional_window(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) return std::nullopt;
  return check_integer(L, index, "nn.attention: window");
}

// Returns nil where LibTorch's attention has to do it.
int few_query_attention(lua_State* L) {
  auto y = attention_of_few_queries(check_tensor(L, 1), check_tensor(L, 2), check_tensor(L, 3),
                                    optional_tensor(L, 4), optional_number(L, 5));
  if (!y) return 0;
  push_tensor(L, *y);
  return 1;
}

// segment_attention(q, k, v, segment_ids = nil, window = nil, scale = nil)
int fused_segment_attention(lua_State* L) {
  push_tensor(L, with_memory_retry(L, [&] {
                return segment_attention(check_tensor(L, 1), check_tensor(L, 2), check_tensor(L, 3),
                                         optional_tensor(L, 4), optional_window(L, 5),
                                         optional_number(L, 6));
              }));
  return 1;
}

// segment_mask(q, segment_ids = nil, window = nil)
int mask_of_segments(lua_State* L) {
  push_tensor(L, with_memory_retry(L, [&] {
                return segment_mask(check_tensor(L, 1), optional_tensor(L, 2),
                                    optional_window(L, 3));
              }));
  return 1;
}

int needs_no_segment_mask(lua_State* L) {
  lua_pushboolean(L, has_segment_attention(check_tensor(L, 1)));
  return 1;
}

int fused_silu_mul(lua_State* L) {
  push_tensor(
      L, with_memory_retry(L, [&] { return silu_mul(check_tensor(L, 1), check_tensor(L, 2)); }));
  return 1;
}

// rotary(x, cos, sin, are_neighbours)
int fused_rotary(lua_State* L) {
  push_tensor(L, with_memory_retry(L, [&] {
                return rotary(check_tensor(L, 1), check_tensor(L, 2), check_tensor(L, 3),
                              lua_toboolean(L, 4) != 0);
              }));
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

// grouped_linear(x, numbers, list of weights, type of quantized ones = nil)
int grouped_linear_layer(lua_State* L) {
  std::vector<at::Tensor> weights;
  for (int i = 1; i <= int(lua_objlen(L, 3)); ++i) {
    lua_rawgeti(L, 3, i);
    weights.push_back(check_tensor(L, -1));
    lua_pop(L, 1);
  }
  const bool are_quantized = !lua_isnoneornil(L, 4);
  const std::string type = are_quantized ? luaL_checkstring(L, 4) : "";
  push_tensor(L, with_memory_retry(L, [&] {
                const at::Tensor &x = check_tensor(L, 1), &numbers = check_tensor(L, 2);
                return are_quantized ? grouped_linear(x, numbers, weights, type)
                                     : grouped_linear(x, numbers, weights);
              }));
  return 1;
}

// check_stop(): ends a loop of an evaluation if the run is to end
int check_stop_of_run(lua_State*) {
  check_stop();
  return 0;
}

int open_redco(lua_State* L) {
  lua_newtable(L);
  // Functions for this library's Lua files only.
  lua_pushcfunction(L, fail_at_script);
  lua_setfield(L, -2, "fail");
  lua_pushcfunction(L, show_notice);
  lua_setfield(L, -2, "notice");
  lua_pushcfunction(L, nearest_name);
  lua_setfield(L, -2, "nearest");
  lua_pushcfunction(L, name_advice);
  lua_setfield(L, -2, "advice_on_name");
  lua_pushcfunction(L, field_advice);
  lua_setfield(L, -2, "advice_on_field");
  lua_pushcfunction(L, syntax_advice);
  lua_setfield(L, -2, "advice_on_syntax");
  lua_pushcfunction(L, described_value);
  lua_setfield(L, -2, "describe");
  lua_pushcfunction(L, embedded_text);
  lua_setfield(L, -2, "embedded");
  lua_pushcfunction(L, embedded_modules);
  lua_setfield(L, -2, "embedded_modules");
  lua_pushcfunction(L, check_stop_of_run);
  lua_setfield(L, -2, "check_stop");
  lua_pushcfunction(L, try_call);
  lua_setfield(L, -2, "try");
  lua_pushcfunction(L, without_cudnn_attention);
  lua_setfield(L, -2, "without_cudnn_attention");
  lua_pushcfunction(L, recorded);
  lua_setfield(L, -2, "recorded");
  lua_pushcfunction(L, device_type);
  lua_setfield(L, -2, "device_type");
  lua_pushcfunction(L, linear_layer);
  lua_setfield(L, -2, "linear");
  add_quantized_functions(L);
  lua_pushcfunction(L, is_recomputing);
  lua_setfield(L, -2, "is_recomputing");
  lua_pushcfunction(L, checkpoint_block);
  lua_setfield(L, -2, "checkpoint_block");
  lua_pushcfunction(L, keep_results_of);
  lua_setfield(L, -2, "keep_results_of");
  lua_pushcfunction(L, begins_recomputed_block);
  lua_setfield(L, -2, "begins_recomputed_block");
  lua_pushcfunction(L, with_recomputed_blocks);
  lua_setfield(L, -2, "with_recomputed_blocks");
  lua_pushcfunction(L, whole_on_shards);
  lua_setfield(L, -2, "whole_on_shards");
  lua_pushcfunction(L, few_query_attention);
  lua_setfield(L, -2, "few_query_attention");
  lua_pushcfunction(L, fused_segment_attention);
  lua_setfield(L, -2, "segment_attention");
  lua_pushcfunction(L, mask_of_segments);
  lua_setfield(L, -2, "segment_mask");
  lua_pushcfunction(L, needs_no_segment_mask);
  lua_setfield(L, -2, "has_segment_attention");
  lua_pushcfunction(L, fused_silu_mul);
  lua_setfield(L, -2, "silu_mul");
  lua_pushcfunction(L, fused_rotary);
  lua_setfield(L, -2, "rotary");
  lua_pushcfunction(L, grouped_linear_layer);
  lua_setfield(L, -2, "grouped_linear");
  lua_pushcfunction(L, fused_dropout);
  lua_setfield(L, -2, "dropout");
  lua_pushcfunction(L, fused_linear_cross_entropy);
  lua_setfield(L, -2, "linear_cross_entropy");
  lua_pushcfunction(L, fused_linear_logprobs);
  lua_setfield(L, -2, "linear_logprobs");
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
