#pragma once

#include "sharded_tensor.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace redco::sharding {

/// Where rows go whose experts are on other ranks. A router chooses k of the experts for each of n
/// rows: `numbers` [n, k]. Each rank of the mesh dimension `ep` has some of the experts, and some
/// rows. Each choice of a row is sent to the rank of its expert, and its result back. What a rank
/// receives depends on the data.
class Routing {
 public:
  /// The dimension of the mesh.
  static constexpr Mesh::Dim ep = Mesh::dim_of(Mesh::expert);

  /// The routing for these numbers, which it remembers with them. A collective. Null if they are
  /// laid out so that the ranks cannot have different rows.
  static std::shared_ptr<const Routing> of(const at::Tensor& numbers, int64_t n_experts);

  /// The same if it is remembered; null if not.
  static std::shared_ptr<const Routing> known(const at::Tensor& numbers);

  /// The rank that has an expert.
  static int64_t rank_of(int64_t expert, int64_t n_experts, int64_t n_ranks);

  int64_t n_rows() const { return n_rows_; }
  int64_t n_choices() const { return n_choices_; }
  int64_t n_experts() const { return n_experts_; }
  /// The number of choices that this rank receives.
  int64_t n_received() const { return numbers_.size(0); }
  /// The experts that they choose: [n_received, 1].
  const at::Tensor& numbers() const { return numbers_; }
  /// The placements of `numbers`, to which rows return.
  const Placements& home() const { return home_; }

  /// Whether a tensor has a row for each choice, [n, k, ...], or one for each row, [n, 1, ...].
  bool has_rows(at::IntArrayRef sizes) const;

  /// Sends the rows of a local part with the placements `home`, [rows, k, ...], [rows, 1, ...] or
  /// [rows, ...] (`is_for_all`), to the experts: [n_received, 1, ...]. A collective.
  at::Tensor sent(const at::Tensor& part, bool is_for_all) const;
  /// The opposite: [n_received, 1, ...] to [rows, k, ...]. A collective.
  at::Tensor returned(const at::Tensor& received) const;

 private:
  std::shared_ptr<const Mesh> mesh_;
  Placements home_;
  int64_t n_rows_ = 0, n_choices_ = 0, n_experts_ = 0;
  int64_t version_ = 0;                       // of the numbers
  at::Tensor order_;                          // indices of the choices here, by expert
  std::vector<int64_t> n_sent_, n_received_;  // by rank
  at::Tensor numbers_;
};

/// The values of a sharded tensor at the ranks of experts.
struct RoutedRows {
  enum Kind : uint8_t {
    choices,  ///< [n, k, ...]
    sum,      ///< [n, ...], the sum over the choices
    copy,     ///< a copy of a tensor for operators of experts that read it
  };

  std::shared_ptr<const Routing> routing;
  at::Tensor rows;  ///< [n_received, 1, ...]; undefined once the tensor was written to
  Kind kind = choices;
  at::Tensor home = {};  ///< the local part; undefined until somebody reads it
  int64_t version = 0;   ///< of `home` when it was equal to the rows

  /// Whether the tensor still has these values.
  bool are_current() const;
  void bring_home();
};

/// A sharded tensor with rows at experts. `placements` and `geometry` are those of its local part,
/// which `local` makes when an operator first asks for it.
at::Tensor wrap_routed(RoutedRows rows, const Placements& placements,
                       std::shared_ptr<const Mesh> mesh, const Geometry& geometry);

}  // namespace redco::sharding
