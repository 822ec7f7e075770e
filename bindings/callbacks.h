#pragma once

#include "arguments.h"
#include "context.h"

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

/// Examples on the Lua side: a list, or what has a length and examples by number from 1 on by its
/// metatable's __len and __index, as redco.data's sets have. A tensor's are its rows.
class Examples {
 public:
  /// `name` says in errors which examples they are.
  Examples(lua_State* L, int index, const std::string& name);

  int64_t size() const { return size_; }
  const Ref& value() const { return value_; }

  /// Pushes a list of the examples with these indices, counted from 0.
  void push(const std::vector<int64_t>& indices) const;
  /// Pushes a list of the first `size` examples: the given one, where it is a list of so many.
  void push_head(int64_t size) const;

 private:
  Ref value_;
  int64_t size_;
  bool is_list_;
  int64_t first_ = 1;  // the number of the first one, in Lua
};

/// Examples as the engine sees them: `collate_fn` is called with the list of those of a batch. What
/// it draws without a generator, by math.random too, is the current rng's (redco/random.h).
Dataset make_dataset(const Examples& examples, const Ref& collate_fn);

/// A collate_fn, and the threads that call it; null: the one that trains does.
struct Collator {
  Ref function;
  std::shared_ptr<CollateWorkers> workers;
};

/// The arguments `collate_fn`, `num_workers` and `prefetch_factor`.
Collator check_collator(NamedArguments& args);

/// The same by a Collator.
Dataset make_dataset(const Examples& examples, const Collator& collator);

/// The argument `collate`.
Collate check_collate(NamedArguments& args);

/// The number of entries of the list at `index`; an error when it is no list.
int64_t check_list(lua_State* L, int index, const std::string& what);

}  // namespace redco::lua
