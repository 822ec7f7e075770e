// Deployer::alone: each process works by itself for a while.

#include <redco/deployer.h>

#include "../formats/tensors/tree_description.h"
#include "../mesh/alone.h"
#include "random.h"

#include <redco/detail/notes.h>
#include <redco/detail/notices.h>
#include <redco/error.h>
#include <redco/json.h>
#include <redco/random.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace redco {

using namespace io;
using namespace mesh;
using namespace train;

namespace {

const char* const where = "alone: the result of the function";

constexpr int64_t alignment = 16;

int64_t padded(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// A result as text: its tree, and the dtypes and sizes of its tensors, in the order in which their
// bytes follow.
std::string text_of_result(const DescribedTree& result) {
  Tree::Dict tensors;
  for (const auto& [name, tensor] : result.tensors) {
    require(!is_sharded(tensor), where, ": '", name,
            "' is a tensor of all processes: return tensors made in the function");
    Tree::List sizes;
    for (int64_t size : tensor.sizes()) sizes.emplace_back(size);
    tensors[name] = Tree::Dict{{"dtype", int64_t(tensor.scalar_type())}, {"sizes", sizes}};
  }
  return json_from_tree(where, Tree::Dict{{"tree", result.description}, {"tensors", tensors}});
}

struct Received {
  std::string description;
  std::vector<std::string> names;
  std::vector<at::Tensor> empty;  // the tensors, without values

  int64_t n_bytes() const {
    int64_t n = 0;
    for (const at::Tensor& tensor : empty) n += padded(int64_t(tensor.nbytes()));
    return n;
  }
};

Received read_result(const std::string& text) {
  Tree tree = tree_from_json(where, text);
  Received received{tree.at("tree").as<std::string>(), {}, {}};
  for (const auto& [name, facts] : tree.at("tensors").as<Tree::Dict>()) {
    std::vector<int64_t> sizes;
    if (facts.at("sizes").is<Tree::List>())  // an empty list comes back as a dictionary
      for (const Tree& size : facts.at("sizes").as<Tree::List>())
        sizes.push_back(size.as<int64_t>());
    received.names.push_back(name);
    received.empty.push_back(at::empty(sizes, at::ScalarType(facts.at("dtype").as<int64_t>())));
  }
  return received;
}

at::Tensor bytes_of(const at::Tensor& contiguous) {
  return contiguous.as_strided({contiguous.numel()}, {1}).view(at::kByte);
}

// Gathers the tensors of all results; returns the trees by rank.
std::vector<Tree> gather(const std::vector<std::string>& texts, const DescribedTree& own,
                         const Mesh& mesh) {
  at::NoGradGuard no_grad;
  std::vector<Received> received;
  int64_t most = 0;
  for (const std::string& text : texts)
    most = std::max(most, received.emplace_back(read_result(text)).n_bytes());
  at::Tensor rows;
  if (most > 0) {
    at::Tensor sent = at::zeros({most}, at::kByte);
    int64_t at = 0;
    for (const auto& [name, tensor] : own.tensors) {
      at::Tensor whole = tensor.detach().cpu().contiguous();
      if (whole.numel() > 0) sent.narrow(0, at, int64_t(whole.nbytes())).copy_(bytes_of(whole));
      at += padded(int64_t(whole.nbytes()));
    }
    rows = mesh.world().all_gather(sent.to(mesh.device())).cpu();
  }
  std::vector<Tree> results;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const Received& from = received[rank];
    std::map<std::string, at::Tensor> tensors;
    int64_t at = 0;
    for (size_t i = 0; i < from.names.size(); ++i) {
      auto n = int64_t(from.empty[i].nbytes());
      if (n > 0) bytes_of(from.empty[i]).copy_(rows[int64_t(rank)].narrow(0, at, n));
      at += padded(n);
      tensors[from.names[i]] = from.empty[i];
    }
    results.push_back(read_tree(from.description, where, from.names,
                                [&](const std::string& name) { return tensors.at(name); }));
  }
  return results;
}

}  // namespace

std::vector<Tree> Deployer::alone(
    const std::function<Tree(const std::shared_ptr<Deployer>& own)>& body) {
  const Processes& processes = mesh_->processes();
  Alone::refuse([] { return "alone"; });
  uint64_t round = take(rng_count_);
  std::string key = "alone/" + mesh_->notes().next_exchange();
  auto key_of = [&](int64_t rank) { return key + std::to_string(rank); };
  DeployerOptions options;
  options.seed =
      int64_t(derive_seed(uint64_t(seed_), {alone_stream, round, uint64_t(processes.rank)}) >> 11);
  options.verbose = false;
  if (device_) options.device = device_->type();
  options.zero_min_size = zero_min_size_;

  DescribedTree result;
  std::string text;
  std::exception_ptr failure;
  try {
    Processes single;
    single.local_rank = processes.local_rank;
    auto own_mesh = Mesh::make({.processes = single, .device_type = mesh_->device().type()});
    std::shared_ptr<Deployer> own(new Deployer(options, std::move(own_mesh)));
    Alone alone;
    WithRng with_rng(own->gen_rng());
    result = describe_tree(body(own), where);
    text = text_of_result(result);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    text = json_from_tree(where, Tree::Dict{{"error", std::string(error.what())}});
  }
  std::vector<std::string> texts;
  if (processes.size > 1) mesh_->notes().leave(key_of(processes.rank), text);
  if (failure) std::rethrow_exception(failure);
  for (int64_t rank = 0; rank < processes.size; ++rank) {
    Waiting waiting("process " + std::to_string(rank) + " to end its work alone");
    texts.push_back(rank == processes.rank ? text
                                           : mesh_->notes().await(key_of(rank),
                                                                  "waiting for the processes that "
                                                                  "work alone"));
  }
  for (int64_t rank = 0; rank < processes.size; ++rank) {
    Tree told = tree_from_json(where, texts[size_t(rank)]);
    if (told.as<Tree::Dict>().contains("error"))
      fail("alone: process ", rank, " failed: ", told.at("error").as<std::string>());
  }
  return gather(texts, result, *mesh_);
}

}  // namespace redco
