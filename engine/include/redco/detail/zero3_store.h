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

/// Parameters of which every dp rank holds a part, and which are whole only while they are used
/// (ZeRO-3, arXiv 1910.02054).
///
/// An operator that reads one gathers its whole block by one collective. The order in which blocks
/// are used is recorded; from then on the next one is on its way while one is used, and the one
/// before is dropped. Autograd keeps the parts alone, so backward gathers anew.
class REDCO_API Zero3Store : public std::enable_shared_from_this<Zero3Store> {
 public:
  /// `params` are sharded tensors, split over dp on a dimension that mp leaves whole; `blocks` says
  /// which block each is in, counted from 0. From now on operators that read one of them, or a
  /// transposed or converted one, find it whole on dp; those that write to one work on the parts.
  static std::shared_ptr<Zero3Store> make(std::vector<at::Tensor> params,
                                          std::vector<size_t> blocks);

  /// Drops all that is gathered. To be called when the parts have changed.
  void release();

  /// The whole of a parameter on dp, as a local tensor of `type`.
  at::Tensor gathered(size_t param, at::ScalarType type);

 private:
  struct Block {
    std::vector<size_t> members;
    std::optional<CoalescedChange> on_its_way;
    std::vector<at::Tensor> whole;  // of the members; empty: not gathered
    at::ScalarType type = at::kFloat;
    // The widest type asked for since the last release, and between the two before: what reads a
    // block in two types, as under autocast, gathers it once.
    std::optional<at::ScalarType> wanted, wanted_before;
  };

  void rejoin();
  static at::ScalarType type_of(const Block& block, at::ScalarType otherwise);
  void start(Block& block, at::ScalarType type);
  void move_to(size_t block, at::ScalarType type);
  void drop(Block& block);

  std::vector<at::Tensor> params_;
  std::vector<size_t> block_of_, place_of_;
  std::vector<Block> blocks_;
  std::vector<size_t> order_;  // of the blocks' uses, while it is recorded and after
  size_t position_ = 0;        // in it
  bool is_recorded_ = false;
  int64_t reconnects_ = 0;  // of the mesh
};

/// Whether a store brings this parameter together.
REDCO_API bool is_stored(const at::Tensor& param);

/// Blocks by dotted names: what shares its name up to the first number, such as "h.0", is one; of
/// other names, what shares all but the last part, such as "ln_f".
REDCO_API std::vector<size_t> blocks_by_name(const std::vector<std::string>& names);

}  // namespace redco
