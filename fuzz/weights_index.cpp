// The index of a model folder in which "1.safetensors" has the tensor "a" and "2.safetensors" the
// tensors "b" and "c".
#include "memory_file.h"

#include <redco/error.h>
#include <redco/weights.h>

#include <filesystem>
#include <fstream>

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "redco-fuzz-XXXXXX").string();
  Folder() {
    if (mkdtemp(path.data()) == nullptr) abort();
    write("1.safetensors", with_length(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"));
    write("2.safetensors", with_length(R"({"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                       R"("c":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"));
  }
  ~Folder() { std::filesystem::remove_all(path); }
  static std::string with_length(const std::string& header) {
    uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header;
  }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path + "/" + name, std::ios::binary) << bytes;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  folder.write("model.safetensors.index.json", text_of(data, size));
  try {
    read_all(redco::Weights(folder.path));
  } catch (const redco::Error&) {
  }
  return 0;
}
