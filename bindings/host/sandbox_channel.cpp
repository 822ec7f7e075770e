// Messages between a Sandbox and its process.

#include "sandbox_channel.h"

#include <redco/detail/last_error.h>
#include <redco/sharding.h>

#include <ATen/ATen.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace redco::sandbox {

namespace {

constexpr int most_levels = 210;  // the bindings convert 200, and a message is some more
constexpr int64_t most_dims = 64;
// The most memory that a value takes, without its text or elements.
constexpr size_t size_of_value = 192;

constexpr c10::ScalarType dtypes[] = {
    at::kByte,  at::kChar,   at::kShort, at::kInt,      at::kLong,         at::kHalf,
    at::kFloat, at::kDouble, at::kBool,  at::kBFloat16, at::kComplexFloat, at::kComplexDouble};

bool is_sent(c10::ScalarType dtype) { return std::ranges::count(dtypes, dtype) == 1; }

// Subtracts `n` from the bytes that the values of a message may still take.
void charge(size_t& left, size_t n) {
  require(n <= left, "the values need more than SandboxOptions::message_bytes");
  left -= n;
}

class Writer {
 public:
  Writer(char* memory, size_t size) : memory_(memory), size_(size), left_for_values_(size) {}

  std::string text;

  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  void put(const std::string& value) {
    charge(left_for_values_, value.size());
    put(uint64_t(value.size()));
    text += value;
  }

  void put(const Tree& tree, int level = 0) {
    require(level < most_levels, "the values are nested too deep");
    charge(left_for_values_, size_of_value);
    if (tree.is<bool>()) {
      text += tree.as<bool>() ? 't' : 'f';
    } else if (tree.is<int64_t>()) {
      text += 'i';
      put(tree.as<int64_t>());
    } else if (tree.is<double>()) {
      text += 'd';
      put(tree.as<double>());
    } else if (tree.is<std::string>()) {
      text += 's';
      put(tree.as<std::string>());
    } else if (tree.is_tensor() && tree.tensor().defined()) {
      text += 'T';
      put(tree.tensor());
    } else if (tree.is<Tree::List>()) {
      text += 'L';
      put(uint64_t(tree.as<Tree::List>().size()));
      for (const Tree& each : tree.as<Tree::List>()) put(each, level + 1);
    } else if (tree.is<Tree::Dict>()) {
      text += 'D';
      put(uint64_t(tree.as<Tree::Dict>().size()));
      for (const auto& [key, value] : tree.as<Tree::Dict>()) {
        put(key);
        put(value, level + 1);
      }
    } else {
      text += 'n';
    }
  }

 private:
  void put(const at::Tensor& tensor) {
    require(!is_sharded(tensor),
            "a sharded tensor cannot be sent to or from a Sandbox; redco::full gathers it");
    require(tensor.layout() == at::kStrided && is_sent(tensor.scalar_type()) &&
                tensor.dim() <= most_dims,
            "a tensor of dtype ", tensor.scalar_type(), " and layout ", tensor.layout(),
            " cannot be sent to or from a Sandbox");
    at::Tensor plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    constexpr size_t alignment = 64;
    size_t begin = (used_ + alignment - 1) / alignment * alignment;
    require(begin <= size_ && plain.nbytes() <= size_ - begin,
            "the tensors need more than SandboxOptions::message_bytes, ", size_);
    if (plain.nbytes() > 0) std::memcpy(memory_ + begin, plain.const_data_ptr(), plain.nbytes());
    used_ = begin + plain.nbytes();
    put(int8_t(plain.scalar_type()));
    put(uint8_t(plain.dim()));
    for (int64_t size : plain.sizes()) put(size);
    put(uint64_t(begin));
  }

  char* memory_;
  size_t size_, left_for_values_, used_ = 0;
};

// Reads what another process wrote, and may still be writing in the memory.
class Reader {
 public:
  Reader(std::string_view text, const char* memory, size_t size)
      : text_(text),
        memory_(memory),
        size_(size),
        left_for_values_(size),
        left_for_tensors_(size) {}

  Tree::List values() {
    Tree::List values;
    while (!text_.empty()) values.push_back(tree(0));
    return values;
  }

 private:
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view bytes(uint64_t n) {
    require(n <= text_.size(), "it ends too early");
    std::string_view result = text_.substr(0, n);
    text_.remove_prefix(n);
    return result;
  }

  std::string string() {
    std::string_view found = bytes(number<uint64_t>());
    charge(left_for_values_, found.size());
    return std::string(found);
  }

  Tree tree(int level) {
    require(level < most_levels, "the values are nested too deep");
    charge(left_for_values_, size_of_value);
    switch (char kind = bytes(1)[0]) {
      case 'n':
        return {};
      case 't':
        return true;
      case 'f':
        return false;
      case 'i':
        return number<int64_t>();
      case 'd':
        return number<double>();
      case 's':
        return string();
      case 'T':
        return tensor();
      case 'L': {
        Tree::List list;
        for (auto n = number<uint64_t>(); n > 0; --n) list.push_back(tree(level + 1));
        return list;
      }
      case 'D': {
        Tree::Dict dict;
        for (auto n = number<uint64_t>(); n > 0; --n) {
          std::string key = string();
          dict.insert_or_assign(std::move(key), tree(level + 1));
        }
        return dict;
      }
      default:
        fail("it has a value of the unknown kind ", int(kind));
    }
  }

  at::Tensor tensor() {
    auto dtype = c10::ScalarType(number<int8_t>());
    require(is_sent(dtype), "a tensor has an unknown dtype");
    std::vector<int64_t> sizes(number<uint8_t>());
    require(int64_t(sizes.size()) <= most_dims, "a tensor has ", sizes.size(), " dimensions");
    // An empty tensor has strides too, which must not overflow.
    uint64_t n = c10::elementSize(dtype);
    bool overflows = false, is_empty = false;
    for (int64_t& size : sizes) {
      size = number<int64_t>();
      require(size >= 0, "a tensor has a negative size");
      is_empty = is_empty || size == 0;
      overflows |= __builtin_mul_overflow(n, uint64_t(std::max<int64_t>(size, 1)), &n);
    }
    require(!overflows && n <= uint64_t(INT64_MAX), "a tensor is too large");
    if (is_empty) n = 0;
    auto begin = number<uint64_t>();
    require(begin <= size_ && n <= size_ - begin, "a tensor is not in the shared memory");
    charge(left_for_tensors_, n);
    at::Tensor result = at::empty(sizes, dtype);
    if (n > 0) std::memcpy(result.mutable_data_ptr(), memory_ + begin, n);
    // Kernels may trust that a boolean is 0 or 1.
    return dtype == at::kBool ? result.view(at::kByte).ne(0) : result;
  }

  std::string_view text_;
  const char* memory_;
  size_t size_, left_for_values_, left_for_tensors_;
};

}  // namespace

Channel::Channel(int socket, int memory, size_t size, Wait wait)
    : socket_(socket), size_(size), wait_(std::move(wait)) {
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  require(mapped != MAP_FAILED, "cannot map shared memory: ", LastError{});
  memory_ = static_cast<char*>(mapped);
}

Channel::~Channel() { munmap(memory_, size_); }

std::string Channel::encode(const Message& message) {
  Writer writer(memory_, size_);
  writer.put(uint64_t{0});
  writer.put(char(message.kind));
  for (const Tree& value : message.values) writer.put(value);
  uint64_t n = writer.text.size() - sizeof(n);
  require(n <= size_, "the values need more than SandboxOptions::message_bytes, ", size_);
  std::memcpy(writer.text.data(), &n, sizeof(n));
  return std::move(writer.text);
}

void Channel::send(const std::string& encoded) {
  for (size_t sent = 0; sent < encoded.size();) {
    if (wait_) wait_(POLLOUT);
    ssize_t n = ::send(socket_, encoded.data() + sent, encoded.size() - sent,
                       MSG_NOSIGNAL | (wait_ ? MSG_DONTWAIT : 0));
    if (n < 0 && errno != EAGAIN && errno != EINTR) throw Closed(strerror(errno));
    sent += size_t(std::max<ssize_t>(n, 0));
  }
}

void Channel::read(char* to, size_t n) {
  for (size_t done = 0; done < n;) {
    if (wait_) wait_(POLLIN);
    ssize_t got = recv(socket_, to + done, n - done, wait_ ? MSG_DONTWAIT : 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) throw Closed("the end");
    done += size_t(std::max<ssize_t>(got, 0));
  }
}

Message Channel::receive() {
  uint64_t n;
  read(reinterpret_cast<char*>(&n), sizeof(n));
  require(n >= 1 && n <= size_, "it says that it has ", n, " bytes");
  // Grows as the bytes arrive.
  std::string text;
  constexpr size_t chunk = size_t{1} << 20;
  while (text.size() < n) {
    size_t before = text.size();
    text.resize(std::min<size_t>(n, before + chunk));
    read(text.data() + before, text.size() - before);
  }
  return {Kind(text[0]), Reader(std::string_view(text).substr(1), memory_, size_).values()};
}

}  // namespace redco::sandbox
