// Examples, collate_fn and other callbacks of the training classes.

#pragma once

#include "state/arguments.h"
#include "state/context.h"

#include <redco/dataset.h>
#include <redco/tree.h>

#include <ATen/core/Generator.h>

#include <cstdint>
#include <lua.hpp>
#include <memory>
#include <string>
#include <vector>

namespace redco::lua {

class CollateWorkers;

/// While it exists, math.random draws from the current rng, if there is one. The destructor
/// restores the earlier state.
class MathRandom {
 public:
  explicit MathRandom(lua_State* L);
  ~MathRandom();
  MathRandom(const MathRandom&) = delete;
  MathRandom& operator=(const MathRandom&) = delete;

 private:
  char* state_ = nullptr;
  std::vector<char> before_;
};

/// Examples held by Lua: a list, the rows of a tensor, or an object whose __len and __index return
/// a length and examples by number from 1, such as the data sets of redco.data.
class Examples {
 public:
  /// `name` identifies the examples in errors.
  Examples(lua_State* L, int index, const std::string& name);

  int64_t size() const { return size_; }
  const Ref& value() const { return value_; }

  /// Pushes a list of the examples with these indices, counted from 0.
  void push(const std::vector<int64_t>& indices) const;
  /// Pushes a list of the first `size` examples: the given list itself if it has that size.
  void push_head(int64_t size) const;

 private:
  Ref value_;
  int64_t size_;
  bool is_list_;
  int64_t first_ = 1;  // the number of the first one, in Lua
};

/// Returns the engine's data set of the examples. It calls `collate_fn` with the list of examples
/// of a batch. Draws without a generator, also by math.random, use the current rng
/// (redco/random.h).
Dataset make_dataset(const Examples& examples, const Ref& collate_fn);

/// A collate_fn and the threads that call it; null: the training thread calls it.
struct Collator {
  Ref function;
  std::shared_ptr<CollateWorkers> workers;
  ContextDims context_dims = {};
};

/// Reads the arguments `collate_fn`, `num_workers`, `prefetch_factor` and `context_dims`.
Collator check_collator(NamedArguments& args);

/// The same with a Collator.
Dataset make_dataset(const Examples& examples, const Collator& collator);

/// Reads the argument `collate`.
Collate check_collate(NamedArguments& args);

/// Raises an error if a parameter of a Lua function has the name of another one's place. `order`
/// has the names that the documentation gives.
void check_parameter_order(const Ref& function, const std::string& what,
                           const std::vector<std::string>& order);

/// Returns the number of entries of the list at `index`. Raises an error if it is not a list.
int64_t check_list(lua_State* L, int index, const std::string& what);

}  // namespace redco::lua
