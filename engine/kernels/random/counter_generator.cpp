// CounterGenerator, and the generators derived from it.

#include "philox.h"

#include "../../mesh/spmd_log.h"

#include <redco/error.h>
#include <redco/random.h>

#include <ATen/ops/empty.h>

#include <cstring>

namespace redco {

using namespace mesh;
using namespace random;

namespace {

constexpr size_t state_bytes = 2 * sizeof(uint64_t);

const CounterGenerator& check_counter_generator(const at::Generator& rng, const char* what) {
  const CounterGenerator* counter = counter_generator(rng);
  require(counter != nullptr, what,
          ": only a redco.Rng can be split, not a torch.Generator: make one from a seed, or use "
          "the rng that your function receives");
  return *counter;
}

at::Generator derived(const CounterGenerator& from, philox::Purpose purpose, uint64_t number) {
  at::Generator rng = make_rng(philox::derive(from.key(), purpose, number));
  counter_generator(rng)->set_batch(from.batch());
  return rng;
}

}  // namespace

// CustomRNGKeyId dispatches every operator with this generator to the kernels of operators.cpp. The
// meta device makes LibTorch's own kernels fail with a message if they ever get it; with a real
// device they would cast it to that device's generator type.
CounterGenerator::CounterGenerator(uint64_t key)
    : GeneratorImpl(c10::Device(c10::kMeta), c10::DispatchKeySet(c10::DispatchKey::CustomRNGKeyId)),
      key_(key) {}

uint64_t CounterGenerator::next_key() {
  log_draw(key_, count_);
  return philox::derive(key_, philox::Purpose::draw, count_++);
}

void CounterGenerator::set_current_seed(uint64_t seed) {
  key_ = seed;
  count_ = 0;
}

uint64_t CounterGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return key_;
}

void CounterGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  require(size_t(state.numel()) == state_bytes, "the state of a generator has ", state.numel(),
          " bytes; expected ", state_bytes);
  uint64_t numbers[2];
  std::memcpy(numbers, state.data(), state_bytes);
  key_ = numbers[0];
  count_ = numbers[1];
}

c10::intrusive_ptr<c10::TensorImpl> CounterGenerator::get_state() const {
  at::Tensor state = at::empty({int64_t(state_bytes)}, at::kByte);
  uint64_t numbers[2] = {key_, count_};
  std::memcpy(state.mutable_data_ptr(), numbers, state_bytes);
  return state.getIntrusivePtr();
}

CounterGenerator* CounterGenerator::clone_impl() const {
  auto* copy = new CounterGenerator(key_);
  copy->count_ = count_;
  copy->batch_ = batch_;
  return copy;
}

at::Generator make_rng(uint64_t key) { return at::make_generator<CounterGenerator>(key); }

CounterGenerator* counter_generator(const at::Generator& generator) {
  return dynamic_cast<CounterGenerator*>(generator.unsafeGetGeneratorImpl());
}

std::vector<at::Generator> split(const at::Generator& rng, int64_t n) {
  const CounterGenerator& from = check_counter_generator(rng, "split");
  require(n >= 0, "split: n = ", n, " must not be negative");
  std::vector<at::Generator> parts;
  for (int64_t i = 0; i < n; ++i)
    parts.push_back(derived(from, philox::Purpose::split, uint64_t(i)));
  return parts;
}

at::Generator fold_in(const at::Generator& rng, uint64_t number) {
  return derived(check_counter_generator(rng, "fold_in"), philox::Purpose::fold_in, number);
}

}  // namespace redco
