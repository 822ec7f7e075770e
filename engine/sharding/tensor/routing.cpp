// Sends rows to the ranks of their experts, and returns the results.

#include "routing.h"

#include <redco/error.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace redco::sharding {

namespace {

constexpr Mesh::Dim ep = Routing::ep;

Span experts_of(int64_t rank, int64_t n_experts, int64_t n_ranks) {
  return span_of(n_experts, 1, n_ranks, rank);
}

// Returns placements of numbers in which ep splits the rows. Nullopt if there are none.
std::optional<Placements> with_split_rows(const at::Tensor& numbers, const Mesh& mesh) {
  Placements placements = placements_of(numbers);
  for (Mesh::Dim dim : Mesh::dims) {
    Placement& placement = placements[dim];
    if (placement.is_partial() || Mesh::has(dim, Mesh::model)) placement = {};
    if (placement.is_sharded() && placement.dim != 0) return std::nullopt;
  }
  if (placements[ep].is_sharded()) return placements;
  placements[ep] = Placement::shard(0);
  for (Mesh::Dim dim : Mesh::dims) {
    const MeshDims over = splitting_with(placements, dim);
    if (over.size() > 1 && !can_split_again(numbers.size(0), over, placements, mesh))
      return std::nullopt;
  }
  return placements;
}

// Returns how many choices of each expert each rank sends to this rank: [ranks, own experts].
at::Tensor counts_received(const at::Tensor& counts, Group& group) {
  const int64_t n_experts = counts.size(0), n_ranks = group.size();
  int64_t most = 0;
  for (int64_t rank = 0; rank < n_ranks; ++rank)
    most = std::max(most, experts_of(rank, n_experts, n_ranks).length());
  at::Tensor by_rank = at::zeros({n_ranks, most}, counts.options());
  for (int64_t rank = 0; rank < n_ranks; ++rank) {
    const Span own = experts_of(rank, n_experts, n_ranks);
    by_rank[rank].narrow(0, 0, own.length()).copy_(counts.narrow(0, own.begin, own.length()));
  }
  return group.all_to_all(by_rank).narrow(1, 0,
                                          experts_of(group.rank(), n_experts, n_ranks).length());
}

std::vector<int64_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.cpu().contiguous();
  const int64_t* first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

}  // namespace

int64_t Routing::rank_of(int64_t expert, int64_t n_experts, int64_t n_ranks) {
  return ((expert + 1) * n_ranks - 1) / n_experts;  // the inverse of span_of
}

std::shared_ptr<const Routing> Routing::known(const at::Tensor& numbers) {
  ShardedTensorImpl* impl = sharded_impl(numbers);
  const std::shared_ptr<const Routing>& routing = impl->routing();
  return routing && routing->version_ == version_of(impl->local()) ? routing : nullptr;
}

std::shared_ptr<const Routing> Routing::of(const at::Tensor& given, int64_t n_experts) {
  ShardedTensorImpl* impl = sharded_impl(given);
  if (!impl || given.dim() != 2) return nullptr;
  if (auto same = known(given); same && same->n_experts_ == n_experts) return same;
  const at::Tensor& values = impl->local();
  auto routing = std::make_shared<Routing>();
  const Mesh& mesh = *impl->mesh();
  std::optional<Placements> home = with_split_rows(given, mesh);
  if (!home) return nullptr;
  routing->mesh_ = impl->mesh();
  routing->home_ = *home;
  routing->n_rows_ = given.size(0);
  routing->n_choices_ = given.size(1);
  routing->n_experts_ = n_experts;
  routing->version_ = version_of(values);
  const at::Tensor all =
      redistribute_local(values, given.sizes(), given.strides(), impl->placements(), *home, mesh)
          .reshape({-1});
  Group& group = mesh.group(ep);
  const Span own = experts_of(group.rank(), n_experts, group.size());
  if (all.is_meta()) {  // the choices are unknown: splits them evenly
    const int64_t n = all.numel();
    counts_received(at::empty({n_experts}, all.options()), group);  // for observers
    routing->order_ = all;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      routing->n_sent_.push_back(span_of(n, 1, group.size(), rank).length());
      routing->n_received_.push_back(span_of(n, 1, group.size(), group.rank()).length());
    }
    routing->numbers_ = at::empty(
        {std::reduce(routing->n_received_.begin(), routing->n_received_.end()), 1}, all.options());
  } else {
    routing->order_ = all.argsort(/*stable=*/true);
    const at::Tensor counts = at::bincount(all, {}, n_experts);
    require(counts.numel() == n_experts, "grouped_linear: a number is ", counts.numel() - 1,
            ", but there are ", n_experts, " weights");
    const at::Tensor received = counts_received(counts, group);
    const std::vector<int64_t> of_experts = to_vector(counts);
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      const Span span = experts_of(rank, n_experts, group.size());
      routing->n_sent_.push_back(
          std::reduce(of_experts.begin() + span.begin, of_experts.begin() + span.end, int64_t{0}));
    }
    routing->n_received_ = to_vector(received.sum(1));
    const at::Tensor experts = at::arange(own.begin, own.end, all.options());
    routing->numbers_ =
        at::repeat_interleave(experts.repeat(group.size()), received.reshape({-1})).unsqueeze(1);
  }
  impl->set_routing(routing);
  return routing;
}

bool Routing::has_rows(at::IntArrayRef sizes) const {
  return sizes.size() >= 2 && sizes[0] == n_rows_ && (sizes[1] == n_choices_ || sizes[1] == 1);
}

at::Tensor Routing::sent(const at::Tensor& part, bool is_for_all) const {
  // Reads a row that all its choices share only once.
  const bool is_shared = is_for_all || part.size(1) == 1 || part.stride(1) == 0;
  const at::Tensor rows =
      is_shared
          ? (is_for_all ? part : part.select(1, 0)).index_select(0, order_.div(n_choices_, "floor"))
          : part.flatten(0, 1).index_select(0, order_);
  return mesh_->group(ep).exchange(rows.split_with_sizes(n_sent_), n_received_).unsqueeze(1);
}

at::Tensor Routing::returned(const at::Tensor& received) const {
  const at::Tensor rows = received.squeeze(1).contiguous();
  const at::Tensor sorted = mesh_->group(ep).exchange(rows.split_with_sizes(n_received_), n_sent_);
  at::Tensor part = at::empty_like(sorted);
  if (!part.is_meta()) part.index_copy_(0, order_, sorted);
  return part.unflatten(0, {order_.size(0) / n_choices_, n_choices_});
}

bool RoutedRows::are_current() const {
  if (!rows.defined() || !home.defined()) return rows.defined();
  return !home.is_inference() && int64_t(home._version()) == version;
}

void RoutedRows::bring_home() {
  if (home.defined()) return;
  home = routing->returned(rows);
  if (kind == sum) home = home.sum(1);
  version = version_of(home);
}

at::Tensor wrap_routed(RoutedRows rows, const Placements& placements,
                       std::shared_ptr<const Mesh> mesh, const Geometry& geometry) {
  at::Tensor result = wrap(rows.rows, placements, std::move(mesh), geometry);
  sharded_impl(result)->set_routed(std::make_shared<RoutedRows>(std::move(rows)));
  return result;
}

}  // namespace redco::sharding
