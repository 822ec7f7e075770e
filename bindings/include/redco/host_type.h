// Registers C++ classes and functions as Lua types: HostType and HostCall.

#pragma once

#include <redco/error.h>
#include <redco/export.h>
#include <redco/tree.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <utility>

struct lua_State;

namespace redco {

class ScriptEngine;

/// A call of a registered function from Lua. Arguments are numbered from 1; the object of a method
/// is argument 1. An argument of the wrong type raises an error that names the function and the
/// argument.
class REDCO_API HostCall {
 public:
  HostCall(lua_State* L, std::string function, bool has_self)
      : L_(L), function_(std::move(function)), has_self_(has_self) {}

  void expect_arguments(int n) const;
  Tree tree(int index) const;
  bool boolean(int index) const;
  int64_t integer(int index, int64_t least, int64_t most) const;
  double number(int index) const;
  std::string text(int index) const;
  at::Tensor tensor(int index) const;
  std::shared_ptr<void> object(int index, std::type_index type) const;

  void give(const Tree& result);
  void give(std::shared_ptr<void> result, std::type_index type);
  int n_results() const { return n_results_; }

 private:
  std::string where(int index) const;

  lua_State* L_;
  std::string function_;
  bool has_self_;
  int n_results_ = 0;
};

namespace host {

using Function = std::function<void(HostCall&)>;

template <class T>
struct SharedOf : std::false_type {};
template <class T>
struct SharedOf<std::shared_ptr<T>> : std::true_type {
  using type = T;
};

/// Converts an argument to a parameter of type `A`: numbers, bool, std::string, at::Tensor, Tree,
/// registered classes by reference or shared_ptr.
template <class A>
decltype(auto) argument(const HostCall& call, int index) {
  using V = std::remove_cvref_t<A>;
  if constexpr (std::is_same_v<V, Tree>) {
    return call.tree(index);
  } else if constexpr (std::is_same_v<V, bool>) {
    return call.boolean(index);
  } else if constexpr (std::is_integral_v<V>) {
    using Limits = std::numeric_limits<V>;
    constexpr bool is_unsigned_64 = std::is_unsigned_v<V> && sizeof(V) == 8;
    constexpr int64_t most = is_unsigned_64 ? std::numeric_limits<int64_t>::max() : Limits::max();
    return static_cast<V>(call.integer(index, int64_t{Limits::min()}, most));
  } else if constexpr (std::is_floating_point_v<V>) {
    return static_cast<V>(call.number(index));
  } else if constexpr (std::is_same_v<V, std::string>) {
    return call.text(index);
  } else if constexpr (std::is_same_v<V, at::Tensor>) {
    return call.tensor(index);
  } else if constexpr (SharedOf<V>::value) {
    using Object = typename SharedOf<V>::type;
    return std::static_pointer_cast<Object>(call.object(index, typeid(Object)));
  } else {
    static_assert(std::is_lvalue_reference_v<A>, "objects are passed by reference or shared_ptr");
    return *static_cast<V*>(call.object(index, typeid(V)).get());  // Lua's stack holds the object
  }
}

template <class R>
void give(HostCall& call, R&& result) {
  using V = std::remove_cvref_t<R>;
  if constexpr (SharedOf<V>::value) {
    call.give(std::static_pointer_cast<void>(std::forward<R>(result)),
              typeid(typename SharedOf<V>::type));
  } else if constexpr (std::is_integral_v<V> && !std::is_same_v<V, bool>) {
    call.give(Tree(int64_t(result)));
  } else if constexpr (std::is_floating_point_v<V>) {
    call.give(Tree(double(result)));
  } else {
    call.give(Tree(std::forward<R>(result)));
  }
}

template <class... A>
struct Parameters {
  /// Calls `function` with the given arguments, followed by those from `first` on.
  template <class F, class... Before>
  static void call(HostCall& call, int first, F&& function, Before&&... before) {
    call.expect_arguments(first - 1 + int(sizeof...(A)));
    [&]<size_t... I>(std::index_sequence<I...>) {
      // Braces convert the arguments in order, so the error names the first wrong one.
      std::tuple<decltype(argument<A>(call, 0))...> arguments{argument<A>(call, first + int(I))...};
      auto run = [&]() -> decltype(auto) {
        return std::invoke(function, std::forward<Before>(before)...,
                           std::get<I>(std::move(arguments))...);
      };
      if constexpr (std::is_void_v<decltype(run())>)
        run();
      else
        give(call, run());
    }
    (std::index_sequence_for<A...>());
  }
};

/// The parameters of a function, or of a member function without its object.
template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...)> : std::type_identity<Parameters<A...>> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const> : std::type_identity<Parameters<A...>> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) noexcept> : std::type_identity<Parameters<A...>> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const noexcept> : std::type_identity<Parameters<A...>> {};
template <class R, class... A>
struct Signature<R (*)(A...)> : std::type_identity<Parameters<A...>> {};

enum class Member { constructor, method, getter, setter };

REDCO_API void make_type(ScriptEngine& engine, const std::string& name, std::type_index type);
REDCO_API void add_member(ScriptEngine& engine, std::type_index type, Member kind,
                          const std::string& name, Function function);
REDCO_API void add_function(ScriptEngine& engine, const std::string& name, Function function);
REDCO_API void set_global(ScriptEngine& engine, const std::string& name,
                          std::shared_ptr<void> object, std::type_index type);

}  // namespace host

/// Describes a class registered with `ScriptEngine::register_type` to Lua:
///
///     engine.register_type<Camera>("Camera")
///         .constructor<std::string>()                       // Camera("front")
///         .method("shoot", &Camera::shoot)                  // camera:shoot(0.01)
///         .property("exposure", &Camera::exposure, &Camera::set_exposure)
///         .property("name", &Camera::name);                 // read-only
///
/// A function is a member function, or any function whose first parameter is a `Camera&`.
/// Parameters and results are numbers, bool, std::string, at::Tensor, Tree, and shared_ptr of
/// registered classes; parameters may also be references to these. Objects live as long as Lua or
/// the program holds them. Exceptions become Lua errors. A missing or extra argument, an argument
/// of another type, an unknown field and a name registered twice raise errors that name the
/// function.
template <class T>
class HostType {
 public:
  /// Sets the global `name` to a constructor with arguments of these types.
  template <class... A>
  HostType& constructor() {
    return constructor([](A... args) { return std::make_shared<T>(std::forward<A>(args)...); });
  }
  /// Sets the global `name` to a constructor that calls `make`, which returns a shared_ptr.
  template <class F>
  requires(!std::is_void_v<typename host::Signature<F>::type>) HostType& constructor(F make) {
    return add(host::Member::constructor, "",
               [make](HostCall& call) { host::Signature<F>::type::call(call, 1, make); });
  }

  template <class F>
  HostType& method(const std::string& name, F function) {
    return add(host::Member::method, name, with_self(std::move(function)));
  }

  /// Adds a property: a function that returns its value, or a data member, which Lua can also set.
  template <class F>
  HostType& property(const std::string& name, F get) {
    if constexpr (std::is_member_object_pointer_v<F>) {
      using V = std::remove_cvref_t<decltype(std::declval<T&>().*get)>;
      add(host::Member::getter, name, with_self([get](T& self) -> V { return self.*get; }));
      if constexpr (std::is_assignable_v<decltype(std::declval<T&>().*get), V>)
        add(host::Member::setter, name,
            with_self([get](T& self, V value) { self.*get = std::move(value); }));
      return *this;
    } else {
      return add(host::Member::getter, name, with_self(std::move(get)));
    }
  }
  template <class F, class G>
  HostType& property(const std::string& name, F get, G set) {
    property(name, std::move(get));
    return add(host::Member::setter, name, with_self(std::move(set)));
  }

 private:
  friend class ScriptEngine;
  HostType(ScriptEngine& engine, const std::string& name) : engine_(engine) {
    host::make_type(engine, name, typeid(T));
  }

  template <class F>
  static host::Function with_self(F function) {
    if constexpr (std::is_member_function_pointer_v<F>) {
      return [function](HostCall& call) {
        auto self = std::static_pointer_cast<T>(call.object(1, typeid(T)));
        host::Signature<F>::type::call(call, 2, function, *self);
      };
    } else {
      return [function](HostCall& call) { host::Signature<F>::type::call(call, 1, function); };
    }
  }

  HostType& add(host::Member kind, const std::string& member, host::Function function) {
    host::add_member(engine_, typeid(T), kind, member, std::move(function));
    return *this;
  }

  ScriptEngine& engine_;
};

}  // namespace redco
