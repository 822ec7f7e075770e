// Whole networks, with parameters split as Megatron splits them and the batch over dp: loss and all
// gradients are those of one process, nothing is gathered, and no more is moved than must be.

#include "thread_mesh.h"

#include <redco/sharding.h>

#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

using namespace redco;
using redco::testing::on_threads;

namespace {

using Params = std::map<std::string, at::Tensor>;

struct Parameter {
  std::vector<int64_t> sizes;
  int64_t split = -1;  // dimension, over mp
};

struct Network {
  std::map<std::string, Parameter> parameters;
  std::vector<int64_t> batch;  // sizes of x; its first dimension is split over dp
  std::function<at::Tensor(const at::Tensor& x, const Params& p)> output;
};

at::Tensor noise(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble) * 0.3;
}

struct Results {
  at::Tensor loss;
  std::vector<at::Tensor> grads;
};

using Layout = std::function<at::Tensor(const at::Tensor&, const Placements&)>;

Results run(const Network& network, const Layout& place) {
  Params params;
  std::vector<at::Tensor> leaves;
  uint64_t seed = 1;
  for (const auto& [name, parameter] : network.parameters) {
    Placement mp = parameter.split < 0 ? Placement() : Placement::shard(parameter.split);
    at::Tensor leaf = place(noise(parameter.sizes, ++seed), {Placement(), {}, {}, {}, mp}).detach();
    params[name] = leaf.requires_grad_();
    leaves.push_back(leaf);
  }
  at::Tensor x = place(noise(network.batch, 1000), placements_on(Mesh::batch, Placement::shard(0)));
  leaves.push_back(x.detach().requires_grad_());
  at::Tensor y = network.output(leaves.back(), params);
  at::Tensor weights =
      place(noise(y.sizes(), 2000), placements_on(Mesh::batch, Placement::shard(0)));
  Results results;
  results.loss = (y * weights).sum();
  results.grads = torch::autograd::grad({results.loss}, leaves);
  return results;
}

void check_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  if (at::allclose(full(actual).detach(), expected.detach(), 1e-9, 1e-9)) return;
  std::ostringstream text;
  text << what << ": got\n" << full(actual) << "\nexpected\n" << expected;
  throw std::runtime_error(text.str());
}

void check(const Network& network) {
  Results expected = run(network, [](const at::Tensor& tensor, auto&) { return tensor; });
  for (const Mesh::Shape& shape : {Mesh::Shape{1, 1, 1, 1, 2, 1},
                                   {2, 1, 1, 1, 1, 1},
                                   {2, 1, 1, 1, 2, 1},
                                   {1, 2, 1, 1, 1, 1},
                                   {2, 2, 1, 1, 1, 1},
                                   {1, 2, 1, 1, 2, 1},
                                   {1, 1, 1, 2, 1, 1},
                                   {1, 1, 1, 2, 2, 1}}) {
    std::string mesh_name = redco::testing::shape_text(shape);
    try {
      on_threads(shape, [&](const std::shared_ptr<const Mesh>& mesh) {
        move_counters().moves.clear();
        Results actual = run(network, [&](const at::Tensor& tensor, const Placements& placements) {
          return shard(tensor, mesh, placements);
        });
        std::string gathered = redco::testing::gathered_without_rule();
        check_close(actual.loss, expected.loss, "loss");
        size_t i = 0;
        for (const auto& [name, parameter] : network.parameters)
          check_close(actual.grads[i], expected.grads[i], "gradient of " + name), ++i;
        check_close(actual.grads[i], expected.grads[i], "gradient of x");
        if (!gathered.empty()) throw std::runtime_error("gathered by" + gathered);
      });
    } catch (const std::exception& error) {
      std::string text = error.what();
      text = mesh_name + ": " + text.substr(0, text.find("Exception raised from"));
      FAIL_CHECK(text);
    }
  }
}

// --- Transformers

constexpr int64_t n_batch = 3, n_time = 5, n_hidden = 8, n_heads = 4, n_inner = 12;

at::Tensor heads(const at::Tensor& x, int64_t n) {
  return x.view({x.size(0), x.size(1), n, x.size(2) / n}).transpose(1, 2);
}

at::Tensor joined(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

void add_linear(Network& network, const std::string& name, int64_t n_out, int64_t n_in,
                int64_t split, bool has_bias = true) {
  network.parameters[name + ".weight"] = {{n_out, n_in}, split};
  if (has_bias) network.parameters[name + ".bias"] = {{n_out}, split == 0 ? 0 : -1};
}

at::Tensor linear(const Params& p, const std::string& name, const at::Tensor& x) {
  auto bias = p.find(name + ".bias");
  return at::linear(x, p.at(name + ".weight"), bias == p.end() ? at::Tensor() : bias->second);
}

// GPT-2's: layer norm, causal attention, GELU.
Network gpt(int n_layers) {
  Network network;
  network.batch = {n_batch, n_time, n_hidden};
  for (int i = 0; i < n_layers; ++i) {
    std::string layer = std::to_string(i);
    for (const char* name : {"q", "k", "v"})
      add_linear(network, layer + name, n_hidden, n_hidden, 0);
    add_linear(network, layer + "o", n_hidden, n_hidden, 1);
    add_linear(network, layer + "up", n_inner, n_hidden, 0);
    add_linear(network, layer + "down", n_hidden, n_inner, 1);
    for (const char* name : {"ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"})
      network.parameters[layer + name] = {{n_hidden}};
  }
  network.output = [n_layers](const at::Tensor& input, const Params& p) {
    at::Tensor x = input;
    for (int i = 0; i < n_layers; ++i) {
      std::string layer = std::to_string(i);
      at::Tensor h =
          at::layer_norm(x, {n_hidden}, p.at(layer + "ln1.weight"), p.at(layer + "ln1.bias"));
      at::Tensor a = at::scaled_dot_product_attention(
          heads(linear(p, layer + "q", h), n_heads), heads(linear(p, layer + "k", h), n_heads),
          heads(linear(p, layer + "v", h), n_heads), {}, 0.0, true);
      x = x + linear(p, layer + "o", joined(a));
      h = at::layer_norm(x, {n_hidden}, p.at(layer + "ln2.weight"), p.at(layer + "ln2.bias"));
      x = x + linear(p, layer + "down", at::gelu(linear(p, layer + "up", h)));
    }
    return at::layer_norm(x, {n_hidden});
  };
  return network;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.pow(2).mean(-1, true) + 1e-6).rsqrt() * weight;
}

// Rotated by position, two elements at a time.
at::Tensor rotated(const at::Tensor& x) {
  at::Tensor angle =
      at::arange(n_time, at::kDouble).unsqueeze(1) * at::tensor({1.0, 1.0, 0.1, 0.1}, at::kDouble);
  at::Tensor turn = at::zeros({4, 4}, at::kDouble);
  turn[1][0] = turn[3][2] = -1;
  turn[0][1] = turn[2][3] = 1;
  return x * angle.cos() + x.matmul(turn) * angle.sin();
}

// LLaMA's: RMS norm, rotary positions, shared heads of keys and values, SwiGLU.
Network llama(int64_t n_shared_heads) {
  Network network;
  network.batch = {n_batch, n_time, 16};
  int64_t n_kv = 4 * n_shared_heads;
  bool is_split = n_shared_heads % 2 == 0;
  add_linear(network, "q", 16, 16, 0, false);
  add_linear(network, "k", n_kv, 16, is_split ? 0 : -1, false);
  add_linear(network, "v", n_kv, 16, is_split ? 0 : -1, false);
  add_linear(network, "o", 16, 16, 1, false);
  add_linear(network, "gate", n_inner, 16, 0, false);
  add_linear(network, "up", n_inner, 16, 0, false);
  add_linear(network, "down", 16, n_inner, 1, false);
  network.parameters["norm1"] = network.parameters["norm2"] = {{16}};
  network.output = [=](const at::Tensor& x, const Params& p) {
    at::Tensor h = rms_norm(x, p.at("norm1"));
    at::Tensor a = at::scaled_dot_product_attention(
        rotated(heads(linear(p, "q", h), n_heads)),
        rotated(heads(linear(p, "k", h), n_shared_heads)), heads(linear(p, "v", h), n_shared_heads),
        {}, 0.0, true, {}, true);
    at::Tensor y = x + linear(p, "o", joined(a));
    h = rms_norm(y, p.at("norm2"));
    return y + linear(p, "down", at::silu(linear(p, "gate", h)) * linear(p, "up", h));
  };
  return network;
}

// --- Images

void add_conv(Network& network, const std::string& name, int64_t n_out, int64_t n_in,
              int64_t split) {
  network.parameters[name + ".weight"] = {{n_out, n_in, 3, 3}, split};
  network.parameters[name + ".bias"] = {{n_out}, split == 0 ? 0 : -1};
}

void add_norm(Network& network, const std::string& name, int64_t n, int64_t split) {
  network.parameters[name + ".weight"] = network.parameters[name + ".bias"] = {{n}, split};
}

at::Tensor conv(const Params& p, const std::string& name, const at::Tensor& x, int64_t stride = 1) {
  return at::conv2d(x, p.at(name + ".weight"), p.at(name + ".bias"), stride, 1);
}

at::Tensor batch_norm(const Params& p, const std::string& name, const at::Tensor& x) {
  at::Tensor mean = at::zeros({x.size(1)}, at::kDouble), variance = at::ones_like(mean);
  return at::batch_norm(x, p.at(name + ".weight"), p.at(name + ".bias"), mean, variance, true, 0.1,
                        1e-5, false);
}

at::Tensor group_norm(const Params& p, const std::string& name, const at::Tensor& x) {
  return at::group_norm(x, 2, p.at(name + ".weight"), p.at(name + ".bias"));
}

Network resnet() {
  Network network;
  network.batch = {n_batch, 3, 6, 6};
  add_conv(network, "stem", 4, 3, -1);
  add_norm(network, "stem_norm", 4, -1);
  add_conv(network, "conv1", 6, 4, 0);
  add_norm(network, "norm1", 6, 0);
  add_conv(network, "conv2", 4, 6, 1);
  add_norm(network, "norm2", 4, -1);
  add_linear(network, "head", 5, 4, -1);
  network.output = [](const at::Tensor& input, const Params& p) {
    at::Tensor x = at::relu(batch_norm(p, "stem_norm", conv(p, "stem", input)));
    x = at::max_pool2d(x, {2, 2});
    at::Tensor h = at::relu(batch_norm(p, "norm1", conv(p, "conv1", x)));
    x = at::relu(x + batch_norm(p, "norm2", conv(p, "conv2", h)));
    return linear(p, "head", at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  };
  return network;
}

Network unet() {
  Network network;
  network.batch = {n_batch, 2, 8, 8};
  add_conv(network, "in", 4, 2, 0);
  add_norm(network, "in_norm", 4, 0);
  add_conv(network, "down", 4, 4, 1);
  add_conv(network, "middle1", 8, 4, 0);
  add_norm(network, "middle_norm", 8, 0);
  add_conv(network, "middle2", 4, 8, 1);
  add_conv(network, "up", 4, 4, -1);
  add_conv(network, "out", 2, 8, -1);
  network.output = [](const at::Tensor& input, const Params& p) {
    at::Tensor x = conv(p, "down", at::silu(group_norm(p, "in_norm", conv(p, "in", input))));
    at::Tensor h = at::avg_pool2d(x, {2, 2});
    h = at::silu(group_norm(p, "middle_norm", conv(p, "middle1", h)));
    h = conv(p, "up", at::upsample_nearest2d(conv(p, "middle2", h), {8, 8}));
    return conv(p, "out", at::cat({x, h}, 1));
  };
  return network;
}

}  // namespace

TEST_CASE("a transformer") { check(gpt(2)); }
TEST_CASE("heads of keys and values that are shared, split with the queries'") { check(llama(2)); }
TEST_CASE("fewer heads of keys and values than shards") { check(llama(1)); }
TEST_CASE("a residual network with batch norm") { check(resnet()); }
TEST_CASE("a network that shrinks and grows, with group norm") { check(unet()); }

TEST_CASE("a layer moves what Megatron moves") {
  for (int n_layers : {1, 2}) {
    Traffic sums;
    int64_t others = 0;
    std::mutex mutex;
    on_threads(1, 2, [&](const std::shared_ptr<const Mesh>& mesh) {
      run(gpt(n_layers), [&](const at::Tensor& tensor, const Placements& placements) {
        return shard(tensor, mesh, placements);
      });
      std::lock_guard lock(mutex);
      const Group::Counters& counters = mesh->group(Mesh::mp).counters();
      sums = counters[Group::all_reduce_kind];
      others = counters[Group::all_gather_kind].count + counters[Group::reduce_scatter_kind].count +
               counters[Group::all_to_all_kind].count;
    });
    // On two ranks an all-reduce sends as many bytes as there are.
    CHECK(sums.count == 4 * n_layers);
    CHECK(sums.bytes == sums.count * n_batch * n_time * n_hidden * int64_t(sizeof(double)));
    CHECK(others == 0);
  }
}
