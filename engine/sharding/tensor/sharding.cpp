// The public functions on sharded tensors: shard, redistribute, full, to_local, from_local.

#include "../call/execution.h"
#include "../stages/moves.h"
#include "../stages/running_pass.h"
#include "gathered_view.h"
#include "sharded_tensor.h"

#include <redco/detail/read_whole.h>
#include <redco/error.h>
#include <redco/moves.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

namespace redco {

using namespace sharding;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Checks and normalizes placements. A mesh dimension of one rank splits nothing.
Placements effective(const Placements& placements, const Mesh& mesh, at::IntArrayRef sizes) {
  Placements result = placements;
  for (Mesh::Dim dim : Mesh::dims) {
    Placement& placement = result[dim];
    if (placement.is_sharded()) {
      auto n_dims = int64_t(sizes.size());
      require(placement.dim >= 0 && placement.dim < n_dims, "placement ", to_string(placement),
              ": a tensor of shape ", sizes, " has no dimension ", placement.dim);
      int64_t size = sizes[size_t(placement.dim)];
      require(placement.block >= 0 && (placement.block == 0 || size % placement.block == 0),
              "placement ", to_string(placement), ": dimension ", placement.dim, " of shape ",
              sizes, " is not a multiple of ", placement.block);
      require(!placement.lengths || size == std::accumulate(placement.lengths->begin(),
                                                            placement.lengths->end(), int64_t{0}),
              "placement ", to_string(placement), ": dimension ", placement.dim, " of shape ",
              sizes, " is not the sum of the blocks");
      if (placement.block == size) placement.block = 0;
      if (!placement.lengths) {
        const int64_t block = placement.block_length(size);
        require(placement.grain > 0 && block % placement.grain == 0, "placement ",
                to_string(placement), ": ", block, " of dimension ", placement.dim, " of shape ",
                sizes, " is not a multiple of ", placement.grain, ", the grain");
        if (block % (placement.grain * mesh.size(dim)) == 0) placement.grain = 1;
      }
    }
    if (mesh.size(dim) == 1) placement = {};
    const int64_t n_ranks = Mesh::has(dim, Mesh::pipeline) ? mesh.n_stages() : mesh.size(dim);
    require(placement.rank < n_ranks, "placement ", to_string(placement), ": ",
            Mesh::facts[dim].name, " has ", n_ranks, " ranks, counted from 0");
    MeshDims over = splitting_with(result, dim);
    if (over.size() >= 2 && !can_split_again(sizes[size_t(placement.dim)], over, result, mesh))
      fail("placements ", to_string(placements), ": on a tensor of shape ", sizes, " ",
           Mesh::facts[over.front()].name, " does not cut between the blocks that ",
           Mesh::facts[dim].name, " splits");
  }
  return result;
}

ShardedTensorImpl* fresh_impl(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = sharded_impl(tensor);
  if (impl) refresh(*impl);
  return impl;
}

// Returns the geometry of `tensor.clone()`.
Geometry geometry_of_copy(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense())
    return dense_geometry(tensor.sizes(), tensor.strides());
  return dense_geometry(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()));
}

// Returns a copy of this rank's part under `target`. If it shared memory with `tensor`, a write to
// one would change the other in some layouts only, and autograd would not know.
at::Tensor own_part(const at::Tensor& tensor, const Placements& target, const Geometry& geometry,
                    const Mesh& mesh) {
  ShardedTensorImpl* impl = fresh_impl(tensor);
  require(!impl || impl->mesh()->stage() == mesh.stage(),
          "shard: the tensor is on one stage of a pipeline; full makes it one of all processes");
  const at::Tensor& local = impl ? impl->local() : tensor;
  at::Tensor part = laid_out(redistribute_local(local, tensor.sizes(), tensor.strides(),
                                                placements_of(tensor), target, mesh),
                             geometry);
  return part.is_alias_of(local) ? part.clone() : part;
}

class Redistribute : public torch::autograd::Function<Redistribute> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const std::shared_ptr<const Mesh>& mesh, const Placements& target) {
    ctx->set_materialize_grads(false);  // as `clone` on one process
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Moving moving(Move::request, "redistribute");
    Geometry geometry = geometry_of_copy(tensor);
    return wrap(own_part(tensor, target, geometry, *mesh), target, mesh, geometry);
  }
  // A gradient may have any placement.
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], {}, {}};
  }
};

class Full : public torch::autograd::Function<Full> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor) {
    ctx->set_materialize_grads(false);  // as `clone` on one process
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Moving moving(Move::request, "full");
    const Geometry geometry = geometry_of_copy(tensor);
    at::Tensor whole = own_part(tensor, {}, geometry, *mesh_of(tensor));
    // While a layout is searched, only operators on sharded tensors run without values, so wraps
    // the result.
    const bool is_imagined = execution().mesh() == mesh_of(tensor);
    return is_imagined ? wrap(whole, {}, mesh_of(tensor), geometry) : whole;
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

// Asks for huge pages for memory that is about to be filled. Fewer page faults make filling three
// times as fast. The system may ignore the advice.
at::Tensor in_huge_pages(at::Tensor tensor) {
  constexpr uintptr_t page = 2 << 20;
  if (!tensor.is_cpu() || is_sharded(tensor) || tensor.nbytes() < 2 * page) return tensor;
  auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  uintptr_t first = (begin + page - 1) / page * page;
  uintptr_t last = (begin + tensor.nbytes()) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  return tensor;
}

struct Layout : torch::CustomClassHolder {
  Layout(const Placements& placements, std::shared_ptr<const Mesh> mesh)
      : placements(placements), mesh(std::move(mesh)) {}
  Placements placements;
  std::shared_ptr<const Mesh> mesh;
};

class ToLocal : public torch::autograd::Function<ToLocal> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ShardedTensorImpl* impl = fresh_impl(tensor);
    ctx->saved_data["layout"] =
        c10::IValue::make_capsule(c10::make_intrusive<Layout>(impl->placements(), impl->mesh()));
    ctx->saved_data["sizes"] = tensor.sizes().vec();
    // A read of the sum reduces the local term in place, so returns a copy.
    return is_partial(impl->placements()) ? impl->local().clone() : alias_of(impl->local());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto layout = c10::static_intrusive_pointer_cast<Layout>(ctx->saved_data["layout"].toCapsule());
    // The gradient of each term is the gradient of the sum.
    Placements placements = layout->placements;
    for (Placement& placement : placements)
      if (placement.is_partial()) placement = {};
    return {from_local(grads[0], layout->mesh, placements, ctx->saved_data["sizes"].toIntVector())};
  }
};

}  // namespace

bool is_sharded(const at::Tensor& tensor) { return tensor.defined() && sharded_impl(tensor); }

Placements placements_of(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = sharded_impl(tensor);
  return impl ? impl->placements() : Placements();
}

std::shared_ptr<const Mesh> mesh_of(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = sharded_impl(tensor);
  return impl ? impl->mesh() : nullptr;
}

at::Tensor shard(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                 const Placements& placements) {
  require(mesh != nullptr, "shard: a mesh is needed");
  const at::Tensor given = on_own_stage(tensor);
  std::shared_ptr<const Mesh> own = mesh;
  if (stage_of(given)) own = mesh_of(given);
  if (execution().mesh() && !is_sharded(given)) own = execution().mesh();
  return Redistribute::apply(given, own, effective(placements, *own, given.sizes()));
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  std::shared_ptr<const Mesh> mesh = mesh_of(tensor);
  require(mesh != nullptr, "redistribute: expected a sharded tensor; shard it first");
  Placements target = effective(placements, *mesh, tensor.sizes());
  return placements_of(tensor) == target ? tensor : Redistribute::apply(tensor, mesh, target);
}

at::Tensor shard_to_read(const at::Tensor& tensor, const std::shared_ptr<const Mesh>& mesh,
                         const Placements& placements) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Placements target = effective(placements, *mesh, tensor.sizes());
  ShardedTensorImpl* impl = fresh_impl(tensor);
  if (placements_of(tensor) != target) return Redistribute::apply(tensor, mesh, target);
  at::Tensor same = wrap(alias_of(memory_of(tensor)), target, mesh, geometry_of(tensor));
  if (impl) sharded_impl(same)->share_memory_of(*impl);
  return same;
}

at::Tensor from_local(const at::Tensor& local, const std::shared_ptr<const Mesh>& mesh,
                      const Placements& placements, at::IntArrayRef sizes) {
  require(mesh != nullptr, "from_local: a mesh is needed");
  Placements target = effective(placements, *mesh, sizes);
  Sizes expected = local_sizes(sizes, target, *mesh);
  require(local.sizes() == expected, "from_local: of a tensor of shape ", sizes,
          " this process holds ", at::IntArrayRef(expected), " under ", to_string(target),
          ", the local tensor has ", local.sizes());
  // Makes the part row-major, because strides of parts may differ between processes. Copies a
  // partial term, because it is reduced in place.
  at::Tensor part =
      is_partial(target) ? local.clone(at::MemoryFormat::Contiguous) : local.detach().contiguous();
  return wrap(part, target, mesh, contiguous_geometry(sizes));
}

at::Tensor empty_spread(at::IntArrayRef sizes, at::TensorOptions options,
                        const std::shared_ptr<const Mesh>& mesh) {
  constexpr int64_t least = 4096;  // elements that justify a collective
  if (!mesh || mesh->world().size() == 1 || c10::multiply_integers(sizes) < least)
    return in_huge_pages(at::empty(sizes, options));
  int64_t largest = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
  Placements placements;
  placements.fill(Placement::shard(largest));
  placements = effective(placements, *mesh, sizes);
  at::Tensor local = in_huge_pages(at::empty(local_sizes(sizes, placements, *mesh), options));
  return from_local(local, mesh, placements, sizes);
}

at::Tensor view_of_part(const at::Tensor& tensor, const Placements& placements) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  ShardedTensorImpl* impl = fresh_impl(tensor);
  require(impl != nullptr, "view_of_part: expected a sharded tensor");
  at::Tensor local = redistribute_local(impl->local(), tensor.sizes(), tensor.strides(),
                                        impl->placements(), placements, *impl->mesh());
  require(local.is_alias_of(impl->local()), "view_of_part: ", to_string(placements),
          " is no part of ", to_string(impl->placements()));
  at::Tensor part =
      wrap(local, placements, impl->mesh(), dense_geometry(tensor.sizes(), tensor.strides()));
  sharded_impl(part)->share_memory_of(*impl);
  return part;
}

const at::Tensor& memory_of(const at::Tensor& tensor) {
  ShardedTensorImpl* impl = tensor.defined() ? fresh_impl(tensor) : nullptr;
  return impl ? impl->local() : tensor;
}

const at::Tensor& held_memory_of(const at::Tensor& tensor) {
  static const at::Tensor nothing;
  ShardedTensorImpl* impl = tensor.defined() ? sharded_impl(tensor) : nullptr;
  if (!impl) return tensor;
  const Execution& how = execution();
  const bool is_shape = impl->mesh()->is_absent() || (!how.has_values() && !how.is_planned());
  return is_shape ? nothing : impl->held();
}

at::Tensor full(const at::Tensor& tensor) {
  return is_sharded(tensor) ? Full::apply(from_stage(tensor)) : tensor.clone();
}

at::Tensor full_to_read(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  const bool is_here = placements_of(tensor) == Placements() && !stage_of(tensor);
  return is_here ? alias_of(memory_of(tensor)) : full(tensor);
}

at::Tensor to_local(const at::Tensor& tensor) {
  return is_sharded(tensor) ? ToLocal::apply(from_stage(tensor)) : tensor;
}

}  // namespace redco
