// The names of a checkpoint's files, and their entries in info.json.
#pragma once

#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco::checkpoint {

inline const std::string params_stem = "params";
inline const std::string opt_state_stem = "opt_state";
inline const std::string custom_state_stem = "custom_state";
inline const std::string info_file = "info.json";
inline const std::string format_field = "format";

/// The hidden names, next to a folder, of the folder while it is incomplete, and of an earlier one
/// if the two cannot be exchanged.
std::string saving_name(const std::string& folder);
std::string earlier_name(const std::string& folder);

/// The XXH3-64 (https://xxhash.com) of a file, computed while it is written or read.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(const void* data, size_t size);
  std::string hex() const;
  int64_t bytes() const { return bytes_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t bytes_ = 0;
};

struct FileSum {
  int64_t bytes = 0;
  std::string xxh3;
};
using FileSums = std::map<std::string, FileSum>;  ///< by file name

Tree tree_of(const FileSums& sums);
/// Throws Error, beginning with `where`, for a tree of another form.
FileSums sums_of(const std::string& where, const Tree& tree);

/// The text of info.json: its last field is the XXH3-64 of the text without that field.
std::string info_text(const std::string& where, const Tree& info);
/// The inverse. Throws Error, beginning with `where`, unless the checksum matches.
Tree info_of(const std::string& where, const std::string& text);

/// Tensors to read parts of a file into, by the offset of the part, which has the tensor's size.
using ReadInto = std::map<int64_t, at::Tensor>;

/// Throws Error unless the file matches its checksum.
void check_file(const std::string& folder, const std::string& name, const FileSum& sum,
                const ReadInto& into);

/// The tensors of a file, and the process that writes it.
struct FilePlan {
  std::string name;
  int64_t writer = 0;
  std::vector<std::string> tensors;
};

/// Distributes tensors evenly over the processes, and those of each process over files. `loads` are
/// the bytes that each process already has to write. The result is the same on all processes.
std::vector<FilePlan> plan_files(const std::string& stem,
                                 const std::map<std::string, int64_t>& bytes,
                                 int64_t max_shard_size, std::vector<int64_t>& loads);

}  // namespace redco::checkpoint
