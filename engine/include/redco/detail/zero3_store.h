#pragma once

#include <redco/detail/coalesced.h>
#include <redco/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace redco {

/// Parameters that are split over the ranks of ZeRO and gathered only while they are used (ZeRO-3,
/// arXiv 1910.02054).
///
/// An operator that reads a parameter gathers its whole block with one collective. The order in
/// which blocks are used is remembered; from then on, while a block is used, the next one is being
/// gathered and the previous one is released. Autograd saves only the parts, so backward gathers
/// again.
class REDCO_API Zero3Store : public std::enable_shared_from_this<Zero3Store> {
 public:
  /// `params` are sharded tensors, split by ZeRO on a dimension that is not split otherwise, over
  /// the dimensions of the mesh in `dims`; `blocks` holds the block of each, counted from 0. From
  /// now on operators that read one of them, or a transposed or converted one, get it gathered;
  /// those that write to one work on the parts.
  static std::shared_ptr<Zero3Store> make(std::vector<at::Tensor> params,
                                          const std::vector<size_t>& blocks,
                                          const std::vector<std::vector<Mesh::Dim>>& dims);

  /// Releases all gathered tensors, at the end of a step. The next one starts that order again.
  void release();

  /// The mesh dimensions over which a parameter is gathered.
  const std::vector<Mesh::Dim>& dims(size_t param) const { return blocks_[block_of_[param]].dims; }

  /// A gathered parameter, as a local tensor of `type`.
  at::Tensor gathered(size_t param, at::ScalarType type);

  /// Counts the writes to the parameter. A part written in inference mode does not count them.
  int64_t version(size_t param) const;

  /// Whether `local` is the memory of the parameter's part, and not that of a converted copy.
  bool owns(size_t param, const at::Tensor& local) const;

 private:
  struct Block {
    std::vector<size_t> members;
    std::vector<Mesh::Dim> dims;  // over which all of them are split
    std::optional<CoalescedChange> on_its_way;
    std::vector<at::Tensor> whole;  // of the members; empty if not gathered
    at::ScalarType type = at::kFloat;
    int64_t version = 0;  // of the members when they were gathered
    // The widest dtype requested since the last release, and between the last two releases. With
    // both, a block that is read in two dtypes, as under autocast, is gathered once.
    std::optional<at::ScalarType> wanted, wanted_before;
  };

  void rejoin();
  int64_t version_of(const Block& block) const;
  static at::ScalarType type_of(const Block& block, at::ScalarType otherwise);
  at::ScalarType own_type(const Block& block) const;
  void start(Block& block, at::ScalarType type);
  void move_to(size_t block, at::ScalarType type);
  void drop(Block& block);

  std::vector<at::Tensor> params_;
  std::vector<size_t> block_of_, place_of_;
  std::vector<Block> blocks_;
  std::vector<size_t> order_;  // the order in which blocks are used
  size_t position_ = 0;        // in order_
  bool knows_order_ = false;
  int64_t reconnects_ = 0;  // the mesh's count at the last check
};

/// Whether a store gathers this parameter.
REDCO_API bool is_stored(const at::Tensor& param);

/// Assigns blocks by dotted names: names that agree up to the first number, such as "h.0", form a
/// block; of other names, those that agree in all but the last part, such as "ln_f".
REDCO_API std::vector<size_t> blocks_by_name(const std::vector<std::string>& names);

}  // namespace redco
