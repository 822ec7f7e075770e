// Reads files of PyTorch's torch.save without running anything in them.

#include "torch_file.h"

#include "../../io/input_file.h"
#include "../../io/strict_json.h"
#include "mapped_tensor.h"
#include "safetensors_format.h"
#include "zip_archive.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace redco::io {

namespace {

using Kind = PickleKind;
using Value = PickleValue;

constexpr uint64_t max_pickle = uint64_t{1} << 30;
constexpr const char* kinds[] = {"None",     "a boolean", "an integer",   "a number", "a text",
                                 "a tuple",  "a list",    "a dictionary", "a type",   "a storage",
                                 "a tensor", "a dtype",   "a function"};

// The first bytes of a file that torch.save wrote before PyTorch 1.6. They are two pickles: a magic
// number of ten bytes and the version 1001.
constexpr std::string_view legacy_start(
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    "\x80\x02M\xe9\x03.",
    21);

// The first and last element of a tensor in its storage: [first, last), empty without elements.
std::pair<int64_t, int64_t> extent(const TorchTensor& tensor) {
  int64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return {tensor.offset, tensor.offset};
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return {tensor.offset, last + 1};
}

int64_t item_size(const TorchTensor& tensor) { return int64_t(c10::elementSize(tensor.dtype)); }

bool is_contiguous(const TorchTensor& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

bool is_aligned(const std::byte* begin, int64_t size) {
  return reinterpret_cast<uintptr_t>(begin) % uintptr_t(size) == 0;
}

void check_booleans(const std::string& where, const TorchTensor& tensor, const std::byte* storage) {
  if (tensor.dtype != at::kBool) return;
  auto [first, last] = extent(tensor);
  const std::byte* wrong = std::find_if(storage + first, storage + last,
                                        [](std::byte value) { return value > std::byte{1}; });
  require(wrong == storage + last, where, "a boolean is ",
          wrong == storage + last ? 0 : int(*wrong), ", expected 0 or 1");
}

}  // namespace

bool TorchFile::is_one(uint64_t first_bytes) {
  std::string_view bytes(reinterpret_cast<const char*>(&first_bytes), sizeof(first_bytes));
  if (bytes.starts_with("PK\3\4")) return true;
  // A safetensors file begins with the size of its header, which may look like the start of a
  // pickle.
  return bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 &&
         first_bytes > safetensors::max_header;
}

bool TorchFile::is_one(const std::string& path) {
  InputFile file(path, "a file of weights");
  uint64_t first_bytes = 0;
  if (file.size() < sizeof(first_bytes)) return false;
  file.read(&first_bytes, sizeof(first_bytes), 0);
  return is_one(first_bytes);
}

TorchFile::TorchFile(const std::string& path) : path_(path) {
  InputFile file(path, "a file of torch.save");
  size_ = file.size();
  require(size_ > 0, path, ": the file is empty");
  mapping_ = file.map();
  std::string_view bytes(reinterpret_cast<const char*>(mapping_.get()), size_);
  bytes.starts_with("PK") ? open_archive(bytes) : open_legacy(bytes);
}

void TorchFile::take_tensors(const TorchUnpickler& unpickler) {
  storages_ = unpickler.storages();
  tensors_ = unpickler.tensors();
  begins_.assign(storages_.size(), nullptr);
}

// Sets the start of a storage; `bytes` are its bytes in the file.
void TorchFile::place(size_t storage, std::string_view bytes) {
  const TorchStorage& stored = storages_[storage];
  require(stored.bytes() == int64_t(bytes.size()), path_, ": the storage ", in_quotes(stored.key),
          " has ", stored.bytes(), " bytes by the pickle and ", bytes.size(),
          " in the file: it is damaged");
  begins_[storage] = mapping_.get() + (bytes.data() - reinterpret_cast<char*>(mapping_.get()));
}

void TorchFile::open_archive(std::string_view bytes) {
  std::string where = path_ + ": ";
  ZipMembers members = read_zip(where, bytes);
  std::string folder = folder_of(where, members);
  require(members.count(folder + "constants.pkl") == 0, where,
          "it is TorchScript, which torch.jit.load reads");
  auto member = [&](const std::string& name) {
    auto found = members.find(folder + name);
    return found == members.end() ? nullptr : &found->second;
  };
  const ZipMember* order = member("byteorder");
  require(order == nullptr || (order->size < 16 && order->text() == "little"), where,
          "its byteorder is not 'little': files of big-endian machines are not read");
  const ZipMember* pickle = member("data.pkl");
  require(pickle != nullptr, where, "there is no data.pkl in it: it was not written by torch.save");
  require(pickle->size <= max_pickle, where, "its data.pkl has ", pickle->size,
          " bytes, expected at most ", max_pickle);
  pickle_ = pickle->text();
  pickle_size_ = pickle_.size();
  TorchUnpickler unpickler(where + "data.pkl: ", pickle_);
  value_ = unpickler.read();
  require(unpickler.rest().empty(), where, "data.pkl: bytes follow the end of the pickle");
  take_tensors(unpickler);
  for (size_t i = 0; i < storages_.size(); ++i) {
    const std::string& key = storages_[i].key;
    const ZipMember* data = member("data/" + key);
    require(data != nullptr, where, "the file of the storage ", in_quotes(key), " is missing");
    require(!data->is_compressed, where, "the storage ", in_quotes(key),
            " is compressed, which torch.save does not do");
    place(i, data->stored);
  }
}

// The file has pickles of the machine, the value and the keys of the storages. Then it has, for
// each storage, the number of elements in eight bytes and the elements.
void TorchFile::open_legacy(std::string_view bytes) {
  std::string where = path_ + ": ";
  require(bytes.starts_with(legacy_start), where, "it does not begin as torch.save begins files: ",
          "it is damaged, or a pickle of another program");
  TorchUnpickler unpickler(where, bytes.substr(legacy_start.size()));
  Value machine = unpickler.read();
  bool is_little = false;
  if (machine.kind == Kind::dict)
    for (size_t i = 0; i < machine.items().size(); i += 2)
      if (machine.items()[i].text == "little_endian")
        is_little = machine.items()[i + 1].integer == 1;
  require(is_little, where, "little_endian is not True: files of big-endian machines are not read");
  value_ = unpickler.read();
  take_tensors(unpickler);
  std::map<std::string_view, size_t> unread;
  for (size_t i = 0; i < storages_.size(); ++i) unread.emplace(storages_[i].key, i);
  Value keys = unpickler.read();
  require(keys.kind == Kind::list, where, "the list of storages is missing");
  std::string_view rest = unpickler.rest();
  pickle_size_ = bytes.size() - rest.size();
  for (const Value& key : keys.items()) {
    auto found = key.kind == Kind::text ? unread.find(key.text) : unread.end();
    require(found != unread.end(), where,
            "the list of storages has one that no tensor has, or one "
            "twice");
    int64_t n = 0;
    require(rest.size() >= sizeof(n), where, "it is cut short");
    std::memcpy(&n, rest.data(), sizeof(n));
    rest.remove_prefix(sizeof(n));
    const TorchStorage& stored = storages_[found->second];
    require(n == stored.size, where, "the storage ", in_quotes(stored.key), " has ", stored.size,
            " elements by the pickle and ", n, " in the file: it is damaged");
    place(found->second, rest.substr(0, size_t(stored.bytes())));
    rest.remove_prefix(size_t(stored.bytes()));
    unread.erase(found);
  }
  require(unread.empty() && rest.empty(), where,
          unread.empty() ? "bytes follow the last storage" : "a storage is not in the file");
}

class TorchFile::TreeMaker {
 public:
  explicit TreeMaker(const TorchFile& file)
      : file_(file), storages_(file.storages_.size()), tensors_(file.tensors_.size()) {
    budget_ = 1000 + 2 * file.pickle_size_;
  }

  Tree make(const Value& value) {
    spend(1 + value.text.size());
    switch (value.kind) {
      case Kind::none:
        return {};
      case Kind::boolean:
        return value.integer != 0;
      case Kind::integer:
        return value.integer;
      case Kind::number:
        return value.number;
      case Kind::text:
      case Kind::object:
        return std::string(value.text);
      case Kind::tuple:
      case Kind::list: {
        Tree::List list;
        for (const Value& each : value.items()) list.push_back(make(each));
        return list;
      }
      case Kind::dict:
        return make_dict(value.items());
      case Kind::tensor:
        return tensor(size_t(value.integer));
      default:
        fail(file_.path_, ": it has ", kinds[int(value.kind)], " that is in no tensor");
    }
  }

 private:
  // Keeps the tree near the size of the pickle: a list that is in many others is made each time.
  void spend(size_t cost) {
    require(cost <= budget_, file_.path_, ": its values repeat others too often");
    budget_ -= cost;
  }

  Tree make_dict(const PickleValues& items) {
    Tree::Dict dict;
    for (size_t i = 0; i < items.size(); i += 2) {
      require(items[i].kind == Kind::text, file_.path_, ": a dictionary has ",
              kinds[int(items[i].kind)], " as a key, expected texts");
      std::string key(items[i].text);
      spend(key.size());
      bool is_new = dict.emplace(key, make(items[i + 1])).second;
      require(is_new, file_.path_, ": the key ", in_quotes(key), " is there twice");
    }
    return dict;
  }

  at::Tensor tensor(size_t index) {
    const TorchTensor& found = file_.tensors_[index];
    if (tensors_[index].defined()) return tensors_[index];
    check_booleans(file_.path_ + ": ", found, file_.begins_[found.storage]);
    tensors_[index] = at::empty({0}, found.dtype)
                          .set_(storage(found.storage), found.offset, found.sizes, found.strides);
    return tensors_[index];
  }

  // The storage of `index`, copied if it is not aligned.
  at::Storage storage(size_t index) {
    if (storages_[index].defined()) return storages_[index].storage();
    int64_t n = file_.storages_[index].bytes();
    std::byte* begin = file_.begins_[index];
    constexpr int64_t widest = 8;
    if (n > 0 && is_aligned(begin, widest)) {
      storages_[index] = mapped_tensor(file_.mapping_, begin, {n}, at::kByte);
    } else {
      storages_[index] = at::empty({n}, at::kByte);
      if (n > 0) std::memcpy(storages_[index].mutable_data_ptr(), begin, size_t(n));
    }
    return storages_[index].storage();
  }

  const TorchFile& file_;
  std::vector<at::Tensor> storages_, tensors_;
  size_t budget_;
};

Tree TorchFile::tree() const { return TreeMaker(*this).make(value_); }

// ---- Weights

TorchWeights::TorchWeights(const std::string& path) : file_(path) {
  const Value& value = file_.value();
  require(value.kind == Kind::dict, path, ": it has ", kinds[int(value.kind)],
          ", expected a dictionary of tensors by name");
  for (size_t i = 0; i < value.items().size(); i += 2) {
    const Value &key = value.items()[i], &tensor = value.items()[i + 1];
    require(key.kind == Kind::text, path, ": the dictionary has ", kinds[int(key.kind)],
            " as a key, expected names of tensors");
    std::string name(key.text);
    require(tensor.kind == Kind::tensor, path, ": ", in_quotes(name), " is ",
            kinds[int(tensor.kind)],
            ", expected a tensor, as in the state_dict of a model; torch.load reads other files");
    Entry entry{file_.tensors()[size_t(tensor.integer)]};
    // Copies of tensors that repeat elements must not be larger than the file.
    uint64_t bytes = uint64_t(item_size(entry));
    for (int64_t size : entry.sizes) bytes *= uint64_t(size);
    require(bytes <= file_.size(), path, ": tensor ", in_quotes(name), ": has ", bytes,
            " bytes, more than the whole file");
    require(entries_.emplace(name, std::move(entry)).second, path, ": tensor ", in_quotes(name),
            " is there twice");
  }
  find_shared();
}

// Marks tensors that overlap another one in their storage. Only the tensor that begins first, the
// largest of those, can be a view.
void TorchWeights::find_shared() {
  std::vector<std::tuple<size_t, int64_t, int64_t, Entry*>> order;  // storage, begin, -end
  for (auto& [name, entry] : entries_) {
    auto [first, last] = extent(entry);
    order.emplace_back(entry.storage, first * item_size(entry), -last * item_size(entry), &entry);
  }
  std::ranges::sort(order);
  size_t storage = 0;
  int64_t end = 0;
  for (auto& [of, first, last, entry] : order) {
    if (of != storage) end = 0;
    storage = of;
    entry->is_shared = first < end;
    end = std::max(end, -last);
  }
}

std::vector<std::string> TorchWeights::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, _] : entries_) names.push_back(name);
  return names;
}

at::Tensor TorchWeights::tensor(const std::string& name) const {
  const Entry& found = entry(name);
  std::byte* storage = file_.begin(found.storage);
  check_booleans(file_.path() + ": tensor " + in_quotes(name) + ": ", found, storage);
  at::TensorOptions options(found.dtype);
  auto [first, last] = extent(found);
  if (first == last) return at::empty(found.sizes, options);
  std::byte* begin = storage + first * item_size(found);
  bool can_view = is_aligned(begin, item_size(found));
  if (can_view && is_contiguous(found) && !found.is_shared)
    return mapped_tensor(file_.mapping(), begin, found.sizes, found.dtype);
  at::Tensor elements =
      can_view ? at::from_blob(begin, {last - first}, options) : at::empty({last - first}, options);
  if (!can_view) std::memcpy(elements.mutable_data_ptr(), begin, elements.nbytes());
  if (!can_view && is_contiguous(found)) return elements.view(found.sizes);
  return elements.as_strided(found.sizes, found.strides, 0).clone(at::MemoryFormat::Contiguous);
}

}  // namespace redco::io
