#pragma once

#include <redco/export.h>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace redco {

/// A source of random numbers whose n-th draw gives an element the number of its place in the
/// logical tensor: the same however the tensor is split among devices, and on every device. It is
/// passed as any operator's `generator`. Not to be shared by threads.
class REDCO_API CounterGenerator : public c10::GeneratorImpl {
 public:
  explicit CounterGenerator(uint64_t key);

  uint64_t key() const { return key_; }
  uint64_t count() const { return count_; }  ///< of the draws so far
  void set_count(uint64_t count) { count_ = count; }

  /// The examples of a micro-batch: `first` to `first + size - 1` of the batch of a step.
  struct Batch {
    int64_t first = 0, size = 0;
  };

  /// From now on a tensor whose first size is a multiple of `size` is taken for a part of the one
  /// that the whole batch gives: its rows get that one's numbers. Other tensors get the same
  /// numbers in every micro-batch. So where micro-batches have one example every tensor is taken for
  /// its part. A size of 0, as at first, ends this.
  void set_batch(Batch batch) { batch_ = batch; }
  const Batch& batch() const { return batch_; }

  /// The key of the next draw, which is counted.
  uint64_t next_key();

  // As LibTorch asks of a generator: the seed is the key, the offset the count, the state both.
  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return key_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { count_ = offset; }
  uint64_t get_offset() const override { return count_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  CounterGenerator* clone_impl() const override;

  uint64_t key_, count_ = 0;
  Batch batch_;
};

/// A CounterGenerator, with no draw made.
REDCO_API at::Generator make_rng(uint64_t key);

/// The CounterGenerator behind a generator, or null for another kind.
REDCO_API CounterGenerator* counter_generator(const at::Generator& generator);

/// New, independent generators for a CounterGenerator: like JAX's keys they depend on its key and
/// the arguments alone, not on what was drawn. They have its batch. Error for another kind.
REDCO_API std::vector<at::Generator> split(const at::Generator& rng, int64_t n);
REDCO_API at::Generator fold_in(const at::Generator& rng, uint64_t number);

/// While it lives, random operators of this thread that are given no generator, dropout included,
/// draw from `rng`. One within another counts alone; an undefined one changes nothing.
class REDCO_API WithRng {
 public:
  explicit WithRng(at::Generator rng);
  ~WithRng();
  WithRng(const WithRng&) = delete;
  WithRng& operator=(const WithRng&) = delete;

  /// That of the innermost one alive on this thread; undefined without any.
  static const at::Generator& current();

 private:
  at::Generator outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace redco
