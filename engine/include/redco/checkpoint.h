#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/tensor_source.h>
#include <redco/tree.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// A parameter that a checkpoint names instead of containing it: training does not change it, and
/// its file has it.
struct FrozenTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  std::string xxh3 = {};  ///< of its values in this dtype, row by row: `checksum_of`
  TensorSource source = {};
};
using FrozenTensors = std::map<std::string, FrozenTensor>;  ///< by the dotted path in the params

/// The XXH3-64 of a plain tensor's values, row by row, in this dtype.
REDCO_API std::string checksum_of(const at::Tensor& tensor, at::ScalarType dtype);

/// A checkpoint is a folder:
///
/// - params.safetensors: full tensors by their dotted paths, whatever layout they were saved from;
///   or params-00001-of-00003.safetensors ... if they are large or several processes wrote them.
///   Frozen ones are not there: info.json has their sizes, dtypes, checksums and files.
/// - params.safetensors.index.json: which tensor is in which file, and the shape of the tree.
/// - opt_state...: the same for the optimizer state, if it was saved.
/// - custom_state...: the same for a script's own state, if it has one.
/// - info.json: plain values, `format`, the size and XXH3-64 of every other file, and its own
///   XXH3-64. The format and the last sum keep their meaning in every later format.
///
/// Writing is atomic: the folder is written next to its destination as ".NAME.saving", synced, and
/// renamed.
struct Checkpoint {
  Tree params = {};
  Tree opt_state = {};        ///< none: not saved or not loaded
  Tree info = {};             ///< a dictionary of plain values
  Tree custom_state = {};     ///< of the script; none: not saved
  FrozenTensors frozen = {};  ///< to save: the tensors of `params` that are only named
};

struct SaveCheckpointOptions {
  std::optional<at::ScalarType> float_dtype = std::nullopt;  ///< of floating-point tensors
  int64_t max_shard_size = 5'000'000'000;                    ///< bytes of tensors in one file
  /// `save` returns once this process has copied its share of the data; a thread writes it.
  bool in_background = false;
  /// Folders that get the same checkpoint, through hard links where the file system has them.
  std::vector<std::string> also = {};
  /// If not empty, the path of a file that afterwards holds the folder's name, such as "last".
  std::string pointer = {};
  /// The number of folders to keep among those whose names differ from this one only in the number
  /// at the end, as in "step_12": those with the highest numbers. none: all.
  std::optional<int64_t> keep_last_k = std::nullopt;
};

/// Writes the checkpoints of a run, one at a time. Every process calls its functions in the same
/// order; each process writes its share of the tensors, which are gathered one at a time.
class REDCO_API CheckpointWriter {
 public:
  explicit CheckpointWriter(std::shared_ptr<const Mesh> mesh);
  /// Waits for a save in progress and ignores its failure.
  ~CheckpointWriter();

  /// Waits for the previous save first. Throws Error, on all processes and leaving nothing behind,
  /// if the checkpoint cannot be written (a full disk, no permission) or holds something that a
  /// safetensors file cannot; an earlier checkpoint of this name is then unchanged. For a
  /// background save the next call of `check`, `wait` or `save` throws it.
  void save(const std::string& folder, const Checkpoint& checkpoint,
            const SaveCheckpointOptions& options = {});

  /// Throws the failure of the save in progress, if it has ended.
  void check();
  /// Waits for the save in progress and throws its failure.
  void wait();

 private:
  class Save;
  std::shared_ptr<const Mesh> mesh_;
  std::unique_ptr<Save> running_;
};

/// Removes leftovers of killed processes from a folder of checkpoints, and restores the name of a
/// checkpoint whose replacement was interrupted. No other process may be saving there.
REDCO_API void clean_checkpoints(const std::string& folder);

struct LoadCheckpointOptions {
  bool params = true;
  bool opt_state = true;
  std::optional<at::ScalarType> float_dtype = std::nullopt;
  /// A tree like the params with the values of those that the checkpoint only names; others are
  /// ignored. Without it these are read from the files that they came from.
  Tree frozen = {};
};

/// A checkpoint is missing, incomplete or damaged.
class REDCO_API DamagedCheckpoint : public Error {
 public:
  using Error::Error;
};

/// Loads a checkpoint saved from any layout. With several processes, each reads the parts it uses,
/// and its tensors are views of the mapped files; a single process gets copies. Every process must
/// call it; each verifies its share of the files. Throws DamagedCheckpoint, which names the file
/// and the fault, on the processes that find the damage, and Error on the others; UnknownFormat for
/// a checkpoint of a newer program; and Error if a frozen parameter cannot be had, or has other
/// values than in the run.
REDCO_API Checkpoint load_checkpoint(const std::string& folder,
                                     const std::shared_ptr<const Mesh>& mesh,
                                     const LoadCheckpointOptions& options = {});

/// The contents of info.json without its list of files. Throws as `load_checkpoint` does.
REDCO_API Tree load_checkpoint_info(const std::string& folder);

/// The params of a checkpoint as tensors on the meta device, without values.
REDCO_API Tree load_params_shape(const std::string& folder);

}  // namespace redco
