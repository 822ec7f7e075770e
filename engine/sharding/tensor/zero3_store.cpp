// Gathers ZeRO-3 parameters block by block, and prefetches the next block.

#include <redco/detail/zero3_store.h>
#include <redco/moves.h>

#include "sharded_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <utility>

namespace redco {

using namespace sharding;

std::shared_ptr<Zero3Store> Zero3Store::make(std::vector<at::Tensor> params,
                                             const std::vector<size_t>& blocks,
                                             const std::vector<std::vector<Mesh::Dim>>& dims) {
  auto store = std::make_shared<Zero3Store>();
  // Parameters of a block that are split over other dimensions form another block.
  std::map<std::pair<size_t, std::vector<Mesh::Dim>>, size_t> places;
  for (size_t i = 0; i < params.size(); ++i) {
    const size_t block = places.emplace(std::pair(blocks[i], dims[i]), places.size()).first->second;
    if (block == store->blocks_.size()) store->blocks_.emplace_back().dims = dims[i];
    store->block_of_.push_back(block);
    store->place_of_.push_back(store->blocks_[block].members.size());
    store->blocks_[block].members.push_back(i);
    // Keeps an alias: the parameter owns the store, so a reference to it would be a cycle.
    ShardedTensorImpl* impl = sharded_impl(params[i]);
    store->params_.push_back(wrap(impl->local(), impl->placements(), impl->mesh(),
                                  dense_geometry(params[i].sizes(), params[i].strides())));
    impl->keep_in(store, i);
  }
  return store;
}

// After a reconnect, drops the state of the failed pass, because it may differ between processes.
void Zero3Store::rejoin() {
  if (params_.empty()) return;
  int64_t now = sharded_impl(params_.front())->mesh()->reconnects();
  if (std::exchange(reconnects_, now) == now) return;
  for (Block& block : blocks_) {
    block.on_its_way.reset();
    block.whole.clear();
    block.wanted = block.wanted_before = std::nullopt;
  }
  order_.clear();
  position_ = 0;
  knows_order_ = false;
}

void Zero3Store::release() {
  rejoin();
  for (Block& block : blocks_) {
    drop(block);
    if (block.wanted) block.wanted_before = std::exchange(block.wanted, std::nullopt);
  }
  knows_order_ |= !order_.empty();
  position_ = 0;
}

void Zero3Store::drop(Block& block) {
  // Wait for a pending gather before its memory is freed.
  if (block.on_its_way) block.on_its_way->wait();
  block.on_its_way.reset();
  block.whole.clear();
}

at::ScalarType Zero3Store::type_of(const Block& block, at::ScalarType otherwise) {
  if (!block.wanted || !block.wanted_before)
    return block.wanted ? *block.wanted : block.wanted_before.value_or(otherwise);
  return c10::promoteTypes(*block.wanted, *block.wanted_before);
}

// Returns the dtype of the floats among the members.
at::ScalarType Zero3Store::own_type(const Block& block) const {
  for (size_t member : block.members)
    if (params_[member].is_floating_point()) return params_[member].scalar_type();
  return at::kFloat;
}

void Zero3Store::start(Block& block, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (size_t member : block.members) {
    // Converts the local tensor, below sharding.
    ShardedTensorImpl* impl = sharded_impl(params_[member]);
    const at::Tensor& own = impl->local();
    parts.push_back(wrap(own.is_floating_point() ? own.to(type) : own, impl->placements(),
                         impl->mesh(), geometry_of(params_[member])));
  }
  block.type = type;
  block.version = version_of(block);
  block.on_its_way = start_gather(parts, block.dims);
}

int64_t Zero3Store::version(size_t param) const {
  return sharding::version_of(sharded_impl(params_[param])->local());
}

int64_t Zero3Store::version_of(const Block& block) const {
  int64_t sum = 0;
  for (size_t member : block.members) sum += version(member);
  return sum;
}

void Zero3Store::move_to(size_t block, at::ScalarType type) {
  if (!knows_order_) {
    if (!order_.empty() && order_.back() == block) return;
    if (!order_.empty()) drop(blocks_[order_.back()]);
    order_.push_back(block);
    return;
  }
  if (order_[position_] != block) {
    drop(blocks_[order_[position_]]);
    // A pass that differs from the known one: find where it continues.
    size_t next = position_ + 1;
    while (next < order_.size() && order_[next] != block) ++next;
    for (size_t i = 0; next == order_.size() && i < order_.size(); ++i)
      if (order_[i] == block) next = i;
    if (next == order_.size()) return;
    position_ = next;
  }
  // Prefetch the next block.
  size_t after = position_ + 1;
  if (after >= order_.size()) return;
  Block& next = blocks_[order_[after]];
  if (order_[after] != block && next.whole.empty() && !next.on_its_way)
    start(next, type_of(next, type));
}

bool Zero3Store::owns(size_t param, const at::Tensor& local) const {
  return sharded_impl(params_[param])->local().is_alias_of(local);
}

at::Tensor Zero3Store::gathered(size_t param, at::ScalarType type) {
  at::NoGradGuard no_grad;
  Moving moving(Move::parameters, "zero");
  rejoin();
  size_t index = block_of_[param];
  Block& block = blocks_[index];
  // Gathers quantized weights as they are, together with floats of any requested dtype.
  if (c10::isFloatingType(type))
    block.wanted = c10::promoteTypes(type, block.wanted.value_or(type));
  else
    type = block.whole.empty() && !block.on_its_way ? own_type(block) : block.type;
  if ((!block.whole.empty() || block.on_its_way) &&
      (c10::promoteTypes(block.type, type) != block.type || block.version != version_of(block)))
    drop(block);
  if (block.whole.empty() && !block.on_its_way) start(block, type_of(block, type));
  move_to(index, type);
  if (block.on_its_way) {
    for (const at::Tensor& whole : block.on_its_way->wait())
      block.whole.push_back(sharded_impl(whole)->local());
    block.on_its_way.reset();
  }
  const at::Tensor& whole = block.whole[place_of_[param]];
  return whole.is_floating_point() ? whole.to(type) : whole;
}

bool is_stored(const at::Tensor& param) {
  ShardedTensorImpl* impl = sharded_impl(param);
  return impl && impl->stored();
}

std::vector<size_t> blocks_by_name(const std::vector<std::string>& names) {
  std::map<std::string, size_t> known;
  std::vector<size_t> blocks;
  for (const std::string& name : names) {
    std::string block = name.substr(0, name.rfind('.'));
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = name.find('.', begin);
      std::string part = name.substr(begin, end - begin);
      if (part.find_first_not_of("0123456789") != std::string::npos) continue;
      block = name.substr(0, end);
      break;
    }
    blocks.push_back(known.emplace(block, known.size()).first->second);
  }
  return blocks;
}

}  // namespace redco
