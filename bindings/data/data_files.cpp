// Readers of large files for redco.data: text files as records, and token files.
#include "data_files.h"

#include "state/object.h"
#include "state/tensor.h"

#include <redco/byte_file.h>
#include <redco/parquet.h>
#include <redco/record_file.h>
#include <redco/token_file.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace redco::lua {

namespace {

struct LuaRecordFile {
  static constexpr const char* lua_name = "RecordFile";
  static constexpr bool is_thread_safe = true;
  RecordFile file;
};

struct LuaTokenFile {
  static constexpr const char* lua_name = "TokenFile";
  static constexpr bool is_thread_safe = true;
  TokenFile file;
};

struct LuaByteFile {
  static constexpr const char* lua_name = "ByteFile";
  static constexpr bool is_thread_safe = true;
  ByteFile file;
};

struct LuaParquetFile {
  static constexpr const char* lua_name = "ParquetFile";
  static constexpr bool is_thread_safe = true;
  ParquetFile file;
};

template <class T>
int length(lua_State* L) {
  push_integer(L, check_object<T>(L, 1, "#")->file.size());
  return 1;
}

template <class T>
void add_length(lua_State* L) {
  luaL_getmetatable(L, T::lua_name);
  lua_pushcfunction(L, length<T>);
  lua_setfield(L, -2, "__len");
  lua_pop(L, 1);
}

int record_file(lua_State* L) {
  static const std::map<std::string, RecordKind> kinds = {{"line", RecordKind::line},
                                                          {"full_line", RecordKind::full_line},
                                                          {"paragraph", RecordKind::paragraph},
                                                          {"csv", RecordKind::csv}};
  RecordKind kind = kinds.at(luaL_checkstring(L, 2));
  size_t size = 0;
  const char* text = lua_isnoneornil(L, 3) ? nullptr : luaL_checklstring(L, 3, &size);
  const char delimiter = *luaL_optstring(L, 4, ",");
  const char* path = luaL_checkstring(L, 1);
  RecordFile file = text ? RecordFile::of_text(path, {text, size}, kind, delimiter)
                         : RecordFile(path, kind, delimiter);
  push_object(L, std::make_shared<LuaRecordFile>(LuaRecordFile{std::move(file)}));
  return 1;
}

int record(lua_State* L) {
  auto self = check_object<LuaRecordFile>(L, 1, "RecordFile:record");
  std::string text = self->file.read(check_integer(L, 2, "RecordFile:record") - 1);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int line_number(lua_State* L) {
  auto self = check_object<LuaRecordFile>(L, 1, "RecordFile:line_number");
  push_integer(L, self->file.line_number(check_integer(L, 2, "RecordFile:line_number") - 1));
  return 1;
}

int token_file(lua_State* L) {
  push_object(L, std::make_shared<LuaTokenFile>(
                     LuaTokenFile{TokenFile(luaL_checkstring(L, 1), check_dtype(L, 2))}));
  return 1;
}

int tokens(lua_State* L) {
  auto self = check_object<LuaTokenFile>(L, 1, "TokenFile:tokens");
  push_tensor(L, self->file.read(check_integer(L, 2, "TokenFile:tokens"),
                                 check_integer(L, 3, "TokenFile:tokens")));
  return 1;
}

int store_tokens(lua_State* L) {
  write_tokens(luaL_checkstring(L, 1), check_tensor(L, 2), check_dtype(L, 3));
  return 0;
}

int byte_file(lua_State* L) {
  push_object(L, std::make_shared<LuaByteFile>(
                     LuaByteFile{ByteFile(luaL_checkstring(L, 1), luaL_checkstring(L, 2))}));
  return 1;
}

int bytes(lua_State* L) {
  auto self = check_object<LuaByteFile>(L, 1, "ByteFile:bytes");
  std::string read =
      self->file.read(check_integer(L, 2, "ByteFile:bytes"), check_integer(L, 3, "ByteFile:bytes"));
  lua_pushlstring(L, read.data(), read.size());
  return 1;
}

int tensor(lua_State* L) {
  auto self = check_object<LuaByteFile>(L, 1, "ByteFile:tensor");
  push_tensor(L, self->file.read_tensor(check_integer(L, 2, "ByteFile:tensor"),
                                        check_integer(L, 3, "ByteFile:tensor"), check_dtype(L, 4)));
  return 1;
}

int parquet_file(lua_State* L) {
  std::optional<std::vector<std::string>> columns;
  if (lua_istable(L, 2)) {
    columns.emplace();
    for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
      lua_rawgeti(L, 2, int(i));
      columns->emplace_back(luaL_checkstring(L, -1));
      lua_pop(L, 1);
    }
  }
  push_object(
      L, std::make_shared<LuaParquetFile>(LuaParquetFile{ParquetFile(
             luaL_checkstring(L, 1), columns, check_integer(L, 3, "data.parquet: max_memory"))}));
  return 1;
}

int row(lua_State* L) {
  auto self = check_object<LuaParquetFile>(L, 1, "ParquetFile:row");
  push_tree(L, self->file.row(check_integer(L, 2, "ParquetFile:row") - 1));
  return 1;
}

int columns(lua_State* L) {
  auto self = check_object<LuaParquetFile>(L, 1, "ParquetFile:columns");
  lua_newtable(L);
  for (const std::string& name : self->file.columns()) {
    lua_pushlstring(L, name.data(), name.size());
    lua_rawseti(L, -2, int(lua_objlen(L, -2)) + 1);
  }
  return 1;
}

int metadata(lua_State* L) {
  auto self = check_object<LuaParquetFile>(L, 1, "ParquetFile:metadata");
  lua_newtable(L);
  for (const auto& [key, text] : self->file.metadata()) {
    lua_pushlstring(L, key.data(), key.size());
    lua_pushlstring(L, text.data(), text.size());
    lua_rawset(L, -3);
  }
  return 1;
}

int zip_archive(lua_State* L) {
  auto files = read_zip_archive(luaL_checkstring(L, 1));
  lua_createtable(L, 0, int(files.size()));
  for (const auto& [name, text] : files) {
    lua_pushlstring(L, name.data(), name.size());
    lua_pushlstring(L, text.data(), text.size());
    lua_rawset(L, -3);
  }
  return 1;
}

// Does not open the file, because opening a pipe waits for its writer.
int file_exists(lua_State* L) {
  std::error_code ignored;
  lua_pushboolean(L, std::filesystem::exists(luaL_checkstring(L, 1), ignored));
  return 1;
}

int list_files(lua_State* L) {
  namespace fs = std::filesystem;
  std::string folder = luaL_checkstring(L, 1);
  std::vector<std::string> paths;
  try {
    for (const auto& entry :
         fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink))
      if (entry.is_regular_file())
        paths.push_back(entry.path().lexically_relative(folder).string());
  } catch (const fs::filesystem_error& error) {
    fail("cannot read the folder ", folder, ": ", error.code().message());
  }
  std::sort(paths.begin(), paths.end());
  lua_createtable(L, int(paths.size()), 0);
  for (size_t i = 0; i < paths.size(); ++i) {
    lua_pushlstring(L, paths[i].data(), paths[i].size());
    lua_rawseti(L, -2, int(i) + 1);
  }
  return 1;
}

constexpr luaL_Reg data_functions[] = {
    {"parquet_file", parquet_file}, {"byte_file", byte_file},   {"zip_archive", zip_archive},
    {"record_file", record_file},   {"token_file", token_file}, {"write_tokens", store_tokens},
    {"file_exists", file_exists},   {"list_files", list_files}, {nullptr, nullptr},
};

}  // namespace

void add_data_files(lua_State* L) {
  luaL_register(L, nullptr, data_functions);
  make_object_type<LuaRecordFile>(
      L,
      "RecordFile {}\n"
      "A text file whose records are read on access; #file is their number.",
      {{"record", record,
        "record(self, i) -> string\n"
        "Returns the text of record i, from 1."},
       {"line_number", line_number,
        "line_number(self, i) -> integer\n"
        "Returns the number of the line at which record i starts."}});
  add_length<LuaRecordFile>(L);
  make_object_type<LuaTokenFile>(
      L,
      "TokenFile {}\n"
      "A memory-mapped file of token ids; #file is their number.",
      {{"tokens", tokens,
        "tokens(self, first, count) -> Tensor [count]\n"
        "Returns `count` tokens starting at position `first`, counted from 0."}});
  add_length<LuaTokenFile>(L);
  make_object_type<LuaByteFile>(
      L,
      "ByteFile {}\n"
      "A binary file; #file is its number of bytes.",
      {{"bytes", bytes,
        "bytes(self, offset, count) -> string\n"
        "Returns `count` bytes starting at `offset`, counted from 0."},
       {"tensor", tensor,
        "tensor(self, offset, count, dtype) -> Tensor [count]\n"
        "Returns `count` little-endian elements starting at byte `offset`, counted from 0."}});
  add_length<LuaByteFile>(L);
  make_object_type<LuaParquetFile>(
      L,
      "ParquetFile {}\n"
      "A Parquet file whose rows are read on access; #file is their number.",
      {{"row", row,
        "row(self, i) -> table\n"
        "Returns row i, from 1, as a table of its columns."},
       {"columns", columns,
        "columns(self) -> list of strings\n"
        "Returns the names of the selected columns."},
       {"metadata", metadata,
        "metadata(self) -> table\n"
        "Returns texts of the writer by key."}});
  add_length<LuaParquetFile>(L);
}

}  // namespace redco::lua
