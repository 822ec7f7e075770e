// Checks TorchScript archives before LibTorch reads them.

#include <redco/torchscript.h>

#include "../../io/input_file.h"
#include "torchscript_pickle.h"
#include "zip_archive.h"

#include <redco/error.h>

namespace redco {

using namespace io;

namespace {

constexpr int max_nesting = 200;

// LibTorch's parser recurses for each bracket, and for each "not", "-" and "~" in a row.
void check_nesting(const std::string& where, const std::string& code) {
  int depth = 0, n_unary = 0;
  char quote = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    char c = code[i];
    if (quote != 0) {
      if (c == '\\')
        ++i;
      else if (c == quote || c == '\n')
        quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
    if (c == '-' || c == '~') {
      ++n_unary;
    } else if (code.compare(i, 4, "not ") == 0) {
      ++n_unary;
      i += 3;
    } else if (c != ' ') {
      n_unary = 0;
    }
    require(depth <= max_nesting && n_unary <= max_nesting, where,
            "its code nests deeper than the ", max_nesting, " levels expected");
  }
}

void check_torchscript(const std::string& where, std::string_view bytes) {
  ZipMembers members = read_zip(where, bytes);
  for (const auto& [name, member] : members) member.check();
  std::string folder = folder_of(where, members);
  require(members.count(folder + "model.json") == 0, where,
          "it was written before PyTorch 1.4; save it again with a newer one");
  for (const char* name : {"data", "constants"}) {
    auto found = members.find(folder + name + ".pkl");
    require(found != members.end(), where, "there is no ", name,
            ".pkl in it: it was not written by torch.jit.save");
    check_pickle(where + name + ".pkl: ", found->second.text(), folder + name + "/", members);
  }
  for (const auto& [name, member] : members) {
    if (!name.starts_with(folder + "code/")) continue;
    if (name.ends_with(".py")) check_nesting(where + name + ": ", member.text());
    if (name.ends_with(".debug_pkl")) check_pickle(where + name + ": ", member.text(), "", members);
  }
}

}  // namespace

std::string read_torchscript(const std::string& path) {
  std::string bytes = read_text(path, "a TorchScript file", uint64_t{1} << 40);
  check_torchscript(path + ": ", bytes);
  return bytes;
}

}  // namespace redco
