// Finds the tensors that a checkpointed function reads; backward runs it again.

#include "tensor_reads.h"

#include "state/tensor.h"
#include "state/values.h"
#include "untransformed.h"

#include <redco/error.h>

#include <c10/core/UndefinedTensorImpl.h>

#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace redco::lua {

namespace {

struct Place {
  Ref value;
  std::string name;
};

// The breadth-first search for a tensor among the values that a function reaches.
class Search {
 public:
  explicit Search(const at::Tensor& tensor) : tensor_(tensor) {}

  void add(const Ref& value, const std::string& name) {
    if (!value) return;
    balanced(value.state(), [&] {
      value.push();
      look_at(value.state(), name);
    });
  }

  // Returns the tensor's name, or "" if it is not found.
  const std::string& run() {
    constexpr size_t most = 10'000;
    while (found_.empty() && !places_.empty() && seen_.size() < most) {
      Place place = std::move(places_.front());
      places_.pop_front();
      balanced(place.value.state(), [&] {
        place.value.push();
        enter(place.value.state(), place.name);
      });
    }
    return found_;
  }

 private:
  // Looks at the value on top of the stack.
  void look_at(lua_State* L, const std::string& name) {
    luaL_checkstack(L, 6, "the name of a tensor");
    if (const at::Tensor* tensor = test_tensor(L, lua_gettop(L))) {
      if (found_.empty() && tensor->is_same(tensor_)) found_ = name;
    } else if ((lua_istable(L, -1) || lua_isfunction(L, -1)) &&
               seen_.insert(lua_topointer(L, -1)).second) {
      places_.push_back({Ref(L, lua_gettop(L)), name});
    }
  }

  void enter(lua_State* L, const std::string& name) {
    if (lua_isfunction(L, -1)) {
      for (int i = 1; const char* upvalue = lua_getupvalue(L, -1, i); ++i, lua_pop(L, 1))
        look_at(L, upvalue);
      return;
    }
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
      if (lua_type(L, -2) != LUA_TSTRING && lua_type(L, -2) != LUA_TNUMBER) continue;
      lua_pushvalue(L, -2);  // lua_tostring changes a number, which lua_next must not see
      std::string key = lua_tostring(L, -1);
      lua_pop(L, 1);
      look_at(L, name.empty() ? key : name + "." + key);
    }
  }

  const at::Tensor& tensor_;
  std::deque<Place> places_;
  std::set<const void*> seen_;
  std::string found_;
};

// Returns nothing for a tensor that does not count its writes.
std::optional<uint32_t> version_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return std::nullopt;
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

void TensorReads::note(const at::Tensor& given) {
  // A weak reference to a tensor of a transform would keep the inner tensor with its graph, which
  // leads back to the checkpoint.
  const at::Tensor tensor = untransformed(given);
  auto version = version_of(tensor);
  if (!version) return;
  const Impl* impl = tensor.unsafeGetTensorImpl();
  if (reads_.contains(impl)) return;
  reads_.emplace(impl, Read{decltype(Read::impl)(tensor.getIntrusivePtr()), *version});
}

// Tensors that are freed by now cannot be read again, and their addresses may be used again.
void TensorReads::end_first_run() {
  for (auto it = reads_.begin(); it != reads_.end();) {
    auto impl = it->second.impl.lock();
    if (impl) it->second.version_after_run = impl->version_counter().current_version();
    it = impl ? std::next(it) : reads_.erase(it);
  }
}

void TensorReads::begin_second_run() {
  for (auto& [_, read] : reads_) read.is_compared = false;
  changed_.reset();
}

void TensorReads::compare(const at::Tensor& given) {
  if (changed_.defined() || !given.defined()) return;
  const at::Tensor tensor = untransformed(given);
  auto found = reads_.find(tensor.unsafeGetTensorImpl());
  if (found == reads_.end() || std::exchange(found->second.is_compared, true)) return;
  if (version_of(tensor) == found->second.version) return;
  changed_ = tensor;
  change_ = &found->second;
}

std::string TensorReads::difference(const Ref& function, const std::vector<Ref>& args) const {
  if (!changed_.defined()) return "";
  Search search(changed_);
  for (size_t i = 0; i < args.size(); ++i) search.add(args[i], "argument " + std::to_string(i + 1));
  search.add(function, "");
  std::string name = search.run();
  std::ostringstream text;
  text << (name.empty() ? "a tensor" : name) << ", " << describe(changed_);
  if (change_->version_after_run != change_->version) {
    text << ", exists outside of the function, which modifies it in place. Backward runs the "
            "function again, which would modify it twice. Write to a copy (y = x + 1 instead of "
            "x:add_(1)), or write outside of the function";
  } else {
    text << ", has been modified in place since the function read it: it is at version "
         << changed_._version() << "; expected version " << change_->version
         << ". Backward runs the function again, which needs the same values. Make a new tensor "
            "(x = x + y instead of x:add_(y)), give the function a copy (x:clone()), or write "
            "after backward";
  }
  return text.str();
}

}  // namespace redco::lua
