#pragma once

#include <redco/export.h>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <vector>

namespace redco {

/// A random number generator whose n-th draw depends, for each element, only on the element's
/// position in the logical tensor: the result is the same on every device and however the tensor is
/// sharded. Pass it as the `generator` of any operator. Not thread-safe.
class REDCO_API CounterGenerator : public c10::GeneratorImpl {
 public:
  explicit CounterGenerator(uint64_t key);

  uint64_t key() const { return key_; }
  uint64_t count() const { return count_; }  ///< the number of draws so far
  void set_count(uint64_t count) { count_ = count; }

  /// The position of a micro-batch in the batch of a step: examples `first` to `first + size - 1`.
  struct Batch {
    int64_t first = 0, size = 0;
  };

  /// From now on a tensor whose first dimension is a multiple of `size` is treated as the
  /// micro-batch's slice of a tensor over the whole batch: its rows get the numbers of that slice.
  /// Other tensors get the same numbers in every micro-batch. With one example per micro-batch
  /// every tensor is treated as a slice. A size of 0, the initial state, ends this.
  void set_batch(Batch batch) { batch_ = batch; }
  const Batch& batch() const { return batch_; }

  /// Returns the key of the next draw and counts the draw.
  uint64_t next_key();

  // LibTorch's generator interface: the seed is the key, the offset the count, the state both.
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

/// A new CounterGenerator with a draw count of 0.
REDCO_API at::Generator make_rng(uint64_t key);

/// The CounterGenerator behind a generator, or null for another kind.
REDCO_API CounterGenerator* counter_generator(const at::Generator& generator);

/// Derives new, independent generators from a CounterGenerator. Like JAX's keys they depend only on
/// its key and the arguments, not on earlier draws. They inherit its batch. Throws Error for
/// another kind of generator.
REDCO_API std::vector<at::Generator> split(const at::Generator& rng, int64_t n);
REDCO_API at::Generator fold_in(const at::Generator& rng, uint64_t number);

/// While it exists, random operators of this thread without an explicit generator, dropout
/// included, draw from `rng`. The innermost object applies; an undefined `rng` changes nothing.
class REDCO_API WithRng {
 public:
  explicit WithRng(at::Generator rng);
  ~WithRng();
  WithRng(const WithRng&) = delete;
  WithRng& operator=(const WithRng&) = delete;

  /// The generator of the innermost object of this thread; undefined if there is none.
  static const at::Generator& current();

 private:
  at::Generator outer_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace redco
