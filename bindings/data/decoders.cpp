// Decoders for redco.data, and JSON, TOML, templates and regular expressions for the Lua files of
// this library.
#include "decoders.h"

#include "json_values.h"
#include "state/registry.h"
#include "state/tensor.h"
#include "state/values.h"

#include <redco/audio.h>
#include <redco/detail/regular_expression.h>
#include <redco/detail/text_template.h>
#include <redco/image.h>
#include <redco/json.h>
#include <redco/options.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::lua {

namespace {

std::string_view check_bytes(lua_State* L, int index) {
  size_t size = 0;
  const char* bytes = luaL_checklstring(L, index, &size);
  return {bytes, size};
}

int json_decode(lua_State* L) {
  push_json(L, read_json(luaL_checkstring(L, 1) + std::string(": "), check_bytes(L, 2)));
  return 1;
}

int json_encode(lua_State* L) {
  int indent = lua_isnoneornil(L, 3) ? -1 : int(luaL_checkinteger(L, 3));
  std::string text = write_json(luaL_checkstring(L, 1) + std::string(": "),
                                check_json(L, 2, "a JSON value"), indent);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

// toml_decode(path) -> table
int toml_decode(lua_State* L) {
  push_json(L, Json(read_toml(luaL_checkstring(L, 1))));
  return 1;
}

// render_template(source, variables) -> text
int lua_render_template(lua_State* L) {
  Json variables = check_json(L, 2, "the variables of a template");
  const auto* members = variables.get<Json::Object>();
  const std::string text =
      render_template(std::string(check_bytes(L, 1)), members ? *members : Json::Object());
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

// find_matches(expression, text) -> list of {first, last, groups}; a group that took no part in a
// match is "".
int lua_find_matches(lua_State* L) {
  const std::string_view text = check_bytes(L, 2);
  const std::vector<RegexMatch> matches = find_matches(std::string(check_bytes(L, 1)), text);
  lua_createtable(L, int(matches.size()), 0);
  for (size_t i = 0; i < matches.size(); ++i) {
    const auto& [whole, groups] = matches[i];
    lua_createtable(L, 2, 1);
    lua_pushinteger(L, lua_Integer(whole.first) + 1);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, lua_Integer(whole.second));
    lua_rawseti(L, -2, 2);
    lua_createtable(L, int(groups.size()), 0);
    for (size_t j = 0; j < groups.size(); ++j) {
      const auto [begin, end] = groups[j].value_or(ByteRange(0, 0));
      lua_pushlstring(L, text.data() + begin, end - begin);
      lua_rawseti(L, -2, int(j) + 1);
    }
    lua_setfield(L, -2, "groups");
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

int image_decode(lua_State* L) {
  push_tensor(L, decode_image(luaL_checkstring(L, 1), check_bytes(L, 2)));
  return 1;
}

int audio_decode(lua_State* L) {
  Audio audio = decode_audio(luaL_checkstring(L, 1), check_bytes(L, 2));
  push_tensor(L, std::move(audio.samples));
  lua_pushinteger(L, audio.sampling_rate);
  return 2;
}

int audio_resample(lua_State* L) {
  push_tensor(L,
              resample_audio(check_tensor(L, 1), luaL_checkinteger(L, 2), luaL_checkinteger(L, 3)));
  return 1;
}

int png_encode(lua_State* L) {
  std::string png = encode_png(luaL_checkstring(L, 1), check_tensor(L, 2));
  lua_pushlstring(L, png.data(), png.size());
  return 1;
}

int jpeg_encode(lua_State* L) {
  std::string jpeg =
      encode_jpeg(luaL_checkstring(L, 1), check_tensor(L, 2), int(luaL_checkinteger(L, 3)));
  lua_pushlstring(L, jpeg.data(), jpeg.size());
  return 1;
}

int image_resize(lua_State* L) {
  push_tensor(L, resize_image(check_tensor(L, 1), luaL_checkinteger(L, 2), luaL_checkinteger(L, 3),
                              static_cast<Resample>(luaL_checkinteger(L, 4)),
                              luaL_optinteger(L, 5, newest_pillow)));
  return 1;
}

constexpr luaL_Reg decoders[] = {
    {"json_decode", json_decode},       {"json_encode", json_encode},
    {"toml_decode", toml_decode},       {"render_template", lua_render_template},
    {"find_matches", lua_find_matches}, {"image_decode", image_decode},
    {"audio_decode", audio_decode},     {"audio_resample", audio_resample},
    {"png_encode", png_encode},         {"jpeg_encode", jpeg_encode},
    {"image_resize", image_resize},     {nullptr, nullptr},
};

}  // namespace

void add_decoders(lua_State* L) { luaL_register(L, nullptr, decoders); }

}  // namespace redco::lua
