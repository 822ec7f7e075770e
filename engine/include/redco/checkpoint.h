#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/mesh.h>
#include <redco/tree.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// A checkpoint is a folder:
///
/// - params.safetensors: tensors by their dotted paths, whole, whatever layout wrote them; or
///   params-00001-of-00003.safetensors ... where they are large or several processes wrote.
/// - params.safetensors.index.json: which tensor is in which file, and the shape of the tree.
/// - opt_state...: the same of the optimizer's state, where that was saved.
/// - info.json: plain values, the size and XXH3-64 of every other file, and its own XXH3-64.
///
/// It appears whole or not at all: it is written as ".NAME.saving" beside, synced, and renamed.
struct Checkpoint {
  Tree params = {};
  Tree opt_state = {};  ///< none: it is not there
  Tree info = {};       ///< a dictionary of plain values
};

struct SaveCheckpointOptions {
  std::optional<at::ScalarType> float_dtype = std::nullopt;  ///< of floating-point tensors
  int64_t max_shard_size = 5'000'000'000;                    ///< bytes of tensors in one file
  /// Returns when this process has copies of what it writes; a thread writes them.
  bool in_background = false;
  /// Folders that get the same checkpoint, by hard links where there are some.
  std::vector<std::string> also = {};
  /// Where not empty: this file says afterwards the name of the folder, "last".
  std::string pointer = {};
  /// How many of the folders whose names differ from this one in the number at their end alone,
  /// "step_12", stay: those with the highest. none: all.
  std::optional<int64_t> keep_last_k = std::nullopt;
};

/// Writes the checkpoints of a run, one at a time. Every process calls its functions in the same
/// order; each writes its share of the tensors, which are brought together one by one.
class REDCO_API CheckpointWriter {
 public:
  explicit CheckpointWriter(std::shared_ptr<const Mesh> mesh);
  /// Waits for what is under way; its failure is not told.
  ~CheckpointWriter();

  /// Waits for the one before. Throws Error, on all processes and with nothing left behind, when it
  /// cannot be written (a full disk, no permission) or holds what a safetensors file cannot; an
  /// earlier checkpoint of this name stays then as it was. In the background that is told by
  /// `check`, `wait` or the next `save`.
  void save(const std::string& folder, const Checkpoint& checkpoint,
            const SaveCheckpointOptions& options = {});

  /// Throws what the one under way has failed with, if it has ended.
  void check();
  /// Waits for the one under way, and throws what it failed with.
  void wait();

 private:
  class Save;
  std::shared_ptr<const Mesh> mesh_;
  std::unique_ptr<Save> running_;
};

/// Removes what killed processes left in a folder of checkpoints, and gives one that was being
/// replaced its name back. Not while another process saves there.
REDCO_API void clean_checkpoints(const std::string& folder);

struct LoadCheckpointOptions {
  bool params = true;
  bool opt_state = true;
  std::optional<at::ScalarType> float_dtype = std::nullopt;
};

/// A checkpoint is missing, not whole or damaged.
class REDCO_API DamagedCheckpoint : public Error {
 public:
  using Error::Error;
};

/// Reads what any layout wrote. Of several processes each reads the parts it uses: their tensors
/// lie in the mapped files; one process has copies. Every process must call it; each checks its
/// share of the files. Throws DamagedCheckpoint, which names the file and what is wrong, on the
/// processes that find it, and Error on the others.
REDCO_API Checkpoint load_checkpoint(const std::string& folder,
                                     const std::shared_ptr<const Mesh>& mesh,
                                     const LoadCheckpointOptions& options = {});

/// What info.json says, its own files left out. Throws as `load_checkpoint`.
REDCO_API Tree load_checkpoint_info(const std::string& folder);

/// The params of a checkpoint without their values: tensors on the device meta.
REDCO_API Tree load_params_shape(const std::string& folder);

}  // namespace redco
