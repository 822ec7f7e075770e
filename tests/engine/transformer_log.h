#pragma once

#include "../../engine/plan/trace/step_log.h"

#include <algorithm>
#include <cstdint>
#include <vector>

/// Steps of transformers in closed form, for tests of the cost model without a script: half the
/// precision of parameters and activations, ZeRO-3 that gathers one layer ahead, or plain data
/// parallelism whose gradients move during the backward pass.
namespace transformer {

struct Shape {
  int64_t layers, hidden, inner, key_values, vocabulary;
  bool is_gated;  ///< three matrices in the feed-forward part

  double layer_parameters() const {
    return double(2 * hidden * hidden + 2 * hidden * key_values +
                  (is_gated ? 3 : 2) * hidden * inner);
  }
  double parameters() const {
    return double(layers) * layer_parameters() + double((is_gated ? 2 : 1) * vocabulary * hidden);
  }
};

struct Layout {
  int64_t n_devices, model_shards;
  bool is_zero3;
  int64_t sequence, batch, accumulation;
  double recomputed;  ///< share of the forward pass that the backward pass repeats
  bool is_compiled;   ///< pointwise operators are fused, which halves their traffic
};

class Step {
 public:
  Step(const Shape& shape, const Layout& layout) : shape_(shape), layout_(layout) {}

  redco::plan::StepLog log() {
    for (int64_t i = 0; i < layout_.accumulation; ++i) add_pass(i + 1 == layout_.accumulation);
    for (int64_t pending : reductions_) log_.wait(pending);
    const double owned = shape_.parameters() / double(layout_.model_shards) /
                         double(layout_.is_zero3 ? replicas() : 1);
    add_pointwise(30 * owned, 1);  // Adam
    return std::move(log_);
  }

 private:
  using Collective = redco::plan::Collective;
  using Group = redco::Group;

  int64_t replicas() const { return layout_.n_devices / layout_.model_shards; }
  double tokens() const { return double(layout_.batch * layout_.sequence); }

  void add_product(double m, double k, double n) {
    log_.add({.name = "aten::mm",
              .flops = 2 * m * k * n,
              .dtype = c10::kHalf,
              .bytes_read = int64_t(2 * (m * k + k * n)),
              .bytes_written = int64_t(2 * m * n),
              .size = int64_t(std::min({m, k, n}))});
  }
  void add_pointwise(double bytes, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      log_.add({.name = "pointwise",
                .bytes_read = int64_t(bytes / double(n) / 2),
                .bytes_written = int64_t(bytes / double(n) / 2)});
  }

  // `times` forward passes of a layer; attention counts as `attention` of them.
  void add_layer(double times, double attention) {
    const auto mp = double(layout_.model_shards), hidden = double(shape_.hidden),
               inner = double(shape_.inner) / mp;
    const double t = tokens() * times;
    add_product(t, hidden, (hidden + 2 * double(shape_.key_values)) / mp);
    add_product(t, hidden / mp, hidden);
    for (int64_t i = shape_.is_gated ? 2 : 1; i > 0; --i) add_product(t, hidden, inner);
    add_product(t, inner, hidden);
    log_.add({.name = "attention",
              .flops = attention * 4 * tokens() * double(layout_.sequence) * hidden / mp,
              .dtype = c10::kHalf,
              .bytes_written = 1,
              .kind = redco::ProductKind::attention,
              .size = layout_.sequence});
    add_pointwise(
        (layout_.is_compiled ? 0.5 : 1) * 2 * t * (14 * hidden + (shape_.is_gated ? 5 : 4) * inner),
        14);
    const double n = mp;
    for (int64_t i = 0; n > 1 && i < 2; ++i)
      log_.wait(log_.start({.kind = Group::all_reduce_kind,
                            .dim = redco::Mesh::dim_of(redco::Mesh::model),
                            .n_ranks = layout_.model_shards,
                            .bytes_sent = int64_t(2 * 2 * t * hidden * (n - 1) / n)}));
  }

  int64_t start(Group::Kind kind, double bytes) {
    return log_.start({.kind = kind,
                       .dim = redco::Mesh::dp,
                       .n_ranks = replicas(),
                       .rank_step = layout_.model_shards,
                       .bytes_sent = int64_t(bytes)});
  }
  // The whole layer in 16 bits, its gradient in 32.
  int64_t start_gather() {
    double part = double(replicas() - 1) / double(replicas());
    return start(Group::all_gather_kind, 2 * share() * part);
  }
  void start_reduction() {
    double part = double(replicas() - 1) / double(replicas());
    reductions_.push_back(layout_.is_zero3 ? start(Group::reduce_scatter_kind, 4 * share() * part)
                                           : start(Group::all_reduce_kind, 8 * share() * part));
  }
  double share() const { return shape_.layer_parameters() / double(layout_.model_shards); }

  void add_pass(bool is_last) {
    bool gathers = layout_.is_zero3 && replicas() > 1;
    bool reduces = replicas() > 1 && (layout_.is_zero3 || is_last);
    // Twice through the layers, each gathered one ahead.
    for (bool is_forward : {true, false}) {
      int64_t next = gathers ? start_gather() : 0;
      for (int64_t i = 0; i < shape_.layers; ++i) {
        int64_t gathered = next;
        if (gathers) log_.wait(gathered);
        if (gathers && i + 1 < shape_.layers) next = start_gather();
        if (is_forward) {
          add_layer(1, 1);
          continue;
        }
        if (layout_.recomputed > 0) add_layer(layout_.recomputed, layout_.recomputed);
        add_layer(2, 2.5);
        if (reduces) start_reduction();
      }
      if (is_forward) add_head();
    }
  }

  // The logits, forward and backward, and the loss in float32.
  void add_head() {
    const auto mp = double(layout_.model_shards), vocabulary = double(shape_.vocabulary) / mp;
    for (int i = 0; i < 3; ++i) add_product(tokens(), double(shape_.hidden), vocabulary);
    add_pointwise((layout_.is_compiled ? 0.5 : 1) * tokens() * vocabulary * 4 * 6, 6);
  }

  Shape shape_;
  Layout layout_;
  redco::plan::StepLog log_;
  std::vector<int64_t> reductions_;
};

}  // namespace transformer
