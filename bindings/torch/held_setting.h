#pragma once

#include <mutex>
#include <utility>

namespace redco::lua {

/// Holds a setting of LibTorch, which is the whole process's, at a value while it exists. Where
/// several threads do so at once, the last one restores what was set before the first. `Setting`
/// has the static functions get and set.
template <class Setting>
class HeldSetting {
 public:
  using Value = decltype(Setting::get());

  explicit HeldSetting(Value value) {
    std::lock_guard lock(mutex_);
    if (n_holders_++ == 0) before_ = Setting::get();
    Setting::set(std::move(value));
  }
  ~HeldSetting() {
    std::lock_guard lock(mutex_);
    if (--n_holders_ == 0) Setting::set(before_);
  }
  HeldSetting(const HeldSetting&) = delete;
  HeldSetting& operator=(const HeldSetting&) = delete;

 private:
  static inline std::mutex mutex_;
  static inline int n_holders_ = 0;
  static inline Value before_{};
};

}  // namespace redco::lua
