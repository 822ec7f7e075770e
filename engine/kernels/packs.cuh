// Elements that a thread reads and writes at once.

namespace {

template <class Stored>
struct alignas(16) Pack {
  static constexpr int n = 16 / sizeof(Stored);
  Stored of[n];
};

}  // namespace
