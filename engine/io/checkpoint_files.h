// The names of a checkpoint's files, and what stands in info.json about them.
#pragma once

#include <redco/tree.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace redco::checkpoint {

inline const std::string kParams = "params";
inline const std::string kOptState = "opt_state";
inline const std::string kInfo = "info.json";
inline const std::string kTree = "redco.tree";

/// What a folder is called until it is whole, and an earlier one where two cannot be exchanged:
/// beside it, hidden.
std::string saving_name(const std::string& folder);
std::string earlier_name(const std::string& folder);

/// XXH3-64 (https://xxhash.com) of a file, as it is written or read.
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
using FileSums = std::map<std::string, FileSum>;  ///< by the file's name

Tree tree_of(const FileSums& sums);
/// Throws Error, beginning with `where`, for what is none.
FileSums sums_of(const std::string& where, const Tree& tree);

/// info.json as it is written: its last field is the XXH3-64 of the text without that field.
std::string info_text(const std::string& where, const Tree& info);
/// The inverse. Throws Error, beginning with `where`, unless the sum fits: not a byte has changed.
Tree info_of(const std::string& where, const std::string& text);

/// Parts of a file by their first bytes, and the tensors of that size which they are read into.
using ReadInto = std::map<int64_t, at::Tensor>;

/// Throws Error unless the file is what its sum says.
void check_file(const std::string& folder, const std::string& name, const FileSum& sum,
                const ReadInto& into);

/// Which tensors are in one file, and who writes it.
struct FilePlan {
  std::string name;
  int64_t writer = 0;
  std::vector<std::string> tensors;
};

/// Spreads tensors evenly over the processes, and those of each over files. `loads` are the bytes
/// that each has to write already. The same on all processes.
std::vector<FilePlan> plan_files(const std::string& stem,
                                 const std::map<std::string, int64_t>& bytes,
                                 int64_t max_shard_size, std::vector<int64_t>& loads);

}  // namespace redco::checkpoint
