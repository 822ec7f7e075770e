#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redco::io {

/// The kind of a value in a pickle. `index` stands for what only one reader of pickles knows.
enum class PickleKind : uint8_t {
  none,
  boolean,
  integer,
  number,
  text,
  tuple,
  list,
  dict,
  dtype,
  storage,
  tensor,
  object,
  function
};

struct PickleContents;

/// A value; text is a view of the pickle. A pickle may have millions, so values are small.
struct PickleValue {
  PickleKind kind = PickleKind::none;
  at::ScalarType dtype = at::kFloat;  ///< of kind `dtype`
  int object_depth = 0;
  int64_t integer = 0;                            ///< or a number that the reader gives the value
  double number = 0;                              ///< of kind `number`
  std::string_view text = {};                     ///< or "module\nname" of a function
  std::shared_ptr<PickleContents> contents = {};  ///< of a tuple, list or dict; a dict's are
                                                  ///< its keys and values in turn

  int depth() const;
  const std::vector<PickleValue>& items() const;
};
using PickleValues = std::vector<PickleValue>;

struct PickleContents {
  PickleValues items;
  int depth = 0;
  bool is_used = false;  ///< within another value; what is used cannot change
};

/// Runs the instructions of a pickle of protocol 2 on values without meaning: no function is
/// called. A derived class says what functions and storages are. Every error begins with `where`.
/// Values nest at most 200 deep, never contain themselves, and take at most some hundred megabytes.
class PickleMachine {
 public:
  virtual ~PickleMachine() = default;
  PickleMachine(const PickleMachine&) = delete;
  PickleMachine& operator=(const PickleMachine&) = delete;

 protected:
  /// `writer` names the function that writes such pickles, "torch.jit.save".
  PickleMachine(std::string where, std::string_view pickle, const char* writer)
      : where_(std::move(where)), rest_(pickle), writer_(writer) {}

  /// Runs one pickle and returns its value; `rest` has the bytes after it.
  PickleValue run();
  std::string_view rest() const { return rest_; }

  /// The value of `module` and `name`, which are `text` with a line end between.
  virtual PickleValue global(std::string_view text) = 0;
  virtual PickleValue reduce(const PickleValue& function, const PickleValue& arguments) = 0;
  /// The object for which BUILD gives the state.
  virtual PickleValue build(const PickleValue& object, const PickleValue& state) = 0;
  virtual PickleValue storage(const PickleValue& id) = 0;
  /// An instruction of which the machine knows nothing.
  virtual void other(uint8_t code);

  /// Throws Error, which says that the pickle is damaged, unless `is_right`.
  void check(bool is_right, const char* what) const;
  /// The items of a tuple that begins with these kinds.
  const PickleValues& arguments(const PickleValue& tuple,
                                std::initializer_list<PickleKind> kinds) const;
  std::vector<int64_t> integers(const PickleValue& tuple) const;
  /// Checks that the elements of a tensor are among the `n_stored` of its storage.
  void check_inside(int64_t n_stored, int64_t offset, const std::vector<int64_t>& sizes,
                    const std::vector<int64_t>& strides) const;
  /// The bytes of `n` elements, which must not be more than those `there`.
  int64_t storage_bytes(std::string_view key, int64_t n, at::ScalarType dtype,
                        uint64_t there) const;

  std::string_view take(size_t size);
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  void push(PickleValue value);
  PickleValue pop();
  PickleValues pop_to_mark();
  PickleValues pop_values(size_t n);
  /// The last value, which must be of this kind.
  PickleValue& top(PickleKind kind);
  void push_container(PickleKind kind, PickleValues values);
  void fill(PickleValue& container, PickleValues values);

  const std::string where_;

 private:
  bool step(uint8_t code);
  std::string_view line();
  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  void push_integer(int64_t integer) { push({.kind = PickleKind::integer, .integer = integer}); }
  void push_long();
  void count_value();
  void put(size_t id);
  void get(size_t id);

  std::string_view rest_;
  const char* writer_;
  PickleValues stack_, memo_;
  std::vector<size_t> marks_;  ///< values below the last mark are inaccessible
  size_t n_values_ = 0;
};

/// "module.name" of a function, for tables and errors.
std::string pickled_name(std::string_view text);

}  // namespace redco::io
