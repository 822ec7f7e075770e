// Writes GGUF files, also of sharded tensors.

#include <redco/gguf.h>

#include "../../io/atomic_file.h"
#include "../../io/strict_json.h"
#include "../../mesh/run/agreement.h"
#include "ggml_types.h"
#include "gguf_format.h"

#include <redco/detail/free_memory.h>
#include <redco/detail/read_whole.h>
#include <redco/error.h>
#include <redco/quantized.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

namespace redco {

using namespace gguf;
using namespace io;

namespace {

// Appends bytes in the order of the format.
class Bytes {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void string(const std::string& text) {
    number(uint64_t{text.size()});
    text_ += text;
  }
  void pad() {
    text_.resize((text_.size() + default_alignment - 1) / default_alignment * default_alignment);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <class T>
void put_integer(Bytes& bytes, const std::string& where, const Tree& value) {
  require(value.is<int64_t>() && value.as<int64_t>() >= int64_t{std::numeric_limits<T>::min()} &&
              value.as<int64_t>() <= int64_t{std::numeric_limits<T>::max()},
          where, "expected an integer of ", 8 * sizeof(T), " bits");
  bytes.number(T(value.as<int64_t>()));
}

struct MetadataKind {
  const char* name;
  ValueType type;
  void (*put)(Bytes& bytes, const std::string& where, const Tree& value);
};

const MetadataKind metadata_kinds[] = {
    {"u8", kUint8, put_integer<uint8_t>},
    {"u32", kUint32, put_integer<uint32_t>},
    {"i32", kInt32, put_integer<int32_t>},
    {"f32", kFloat32,
     [](Bytes& bytes, const std::string& where, const Tree& value) {
       require(value.is<double>() || value.is<int64_t>(), where, "expected a number");
       bytes.number(float(value.is<double>() ? value.as<double>() : double(value.as<int64_t>())));
     }},
    {"bool", kBool,
     [](Bytes& bytes, const std::string& where, const Tree& value) {
       require(value.is<bool>(), where, "expected a boolean");
       bytes.number(uint8_t(value.as<bool>()));
     }},
    {"string", kString,
     [](Bytes& bytes, const std::string& where, const Tree& value) {
       require(value.is<std::string>(), where, "expected a text");
       bytes.string(value.as<std::string>());
     }},
};

void put_value(Bytes& bytes, const std::string& path, const GgufValue& entry) {
  const std::string where = "cannot write " + path + ": key " + in_quotes(entry.key) + ": ";
  const bool is_list = entry.type.ends_with("[]");
  const std::string name = entry.type.substr(0, entry.type.size() - (is_list ? 2 : 0));
  const MetadataKind* kind = nullptr;
  for (const MetadataKind& known : metadata_kinds)
    if (name == known.name) kind = &known;
  require(kind != nullptr, where, "unknown type ", in_quotes(entry.type));
  bytes.string(entry.key);
  if (!is_list) {
    bytes.number(uint32_t{kind->type});
    return kind->put(bytes, where, entry.value);
  }
  require(entry.value.is<Tree::List>(), where, "expected a list");
  const auto& list = entry.value.as<Tree::List>();
  bytes.number(uint32_t{kArray});
  bytes.number(uint32_t{kind->type});
  bytes.number(uint64_t{list.size()});
  for (const Tree& value : list) kind->put(bytes, where, value);
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + default_alignment - 1) / default_alignment * default_alignment;
}

}  // namespace

struct GgufWriter::State {
  std::string path;
  std::vector<GgufTensor> tensors;
  std::shared_ptr<const Mesh> mesh;
  std::unique_ptr<AtomicFile> file;
  std::exception_ptr failure;
  size_t next = 0;       ///< the tensor that is written
  uint64_t written = 0;  ///< its bytes so far

  // Runs a step on the first process, unless something failed before.
  void on_first(const std::function<void()>& step) {
    if ((mesh && mesh->processes().rank != 0) || failure) return;
    try {
      step();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }

  ggml::Type type_of(const GgufTensor& tensor) const {
    auto type = ggml::find_type_by_name(tensor.type);
    require(type.has_value(), "cannot write ", path, ": tensor ", in_quotes(tensor.name),
            ": the type ", in_quotes(tensor.type), " is not one of GGUF");
    return *type;
  }

  uint64_t bytes_of(const GgufTensor& tensor) const {
    const ggml::Type type = type_of(tensor);
    int64_t n = 1;
    for (int64_t size : tensor.shape) n *= size;
    require(!tensor.shape.empty() && tensor.shape.size() <= 4 && n > 0 &&
                tensor.shape.back() % type.block_size == 0,
            "cannot write ", path, ": tensor ", in_quotes(tensor.name), ": the sizes [",
            at::IntArrayRef(tensor.shape), "] are not those of a tensor of ", tensor.type);
    return uint64_t(n / type.block_size * type.block_bytes);
  }

  std::string header(const std::vector<GgufValue>& metadata) const {
    Bytes bytes;
    bytes.number(uint32_t{0x46554747});  // GGUF
    bytes.number(uint32_t{3});
    bytes.number(uint64_t{tensors.size()});
    bytes.number(uint64_t{metadata.size()});
    for (const GgufValue& entry : metadata) put_value(bytes, path, entry);
    uint64_t offset = 0;
    std::set<std::string> names;
    for (const GgufTensor& tensor : tensors) {
      require(names.insert(tensor.name).second && tensor.name.size() < 64, "cannot write ", path,
              ": tensor ", in_quotes(tensor.name),
              ": the name is there twice, or has more than 63 bytes");
      bytes.string(tensor.name);
      bytes.number(uint32_t(tensor.shape.size()));
      for (size_t dim = tensor.shape.size(); dim-- > 0;) bytes.number(uint64_t(tensor.shape[dim]));
      bytes.number(type_of(tensor).number);
      bytes.number(offset);
      offset += aligned(bytes_of(tensor));
    }
    bytes.pad();
    return bytes.text();
  }
};

GgufWriter::GgufWriter(std::string path, const std::vector<GgufValue>& metadata,
                       std::vector<GgufTensor> tensors, std::shared_ptr<const Mesh> mesh)
    : state_(new State{std::move(path), std::move(tensors), std::move(mesh), {}, {}}) {
  const std::string header = state_->header(metadata);
  state_->on_first([&] {
    std::error_code error;
    const auto folder = std::filesystem::path(state_->path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    require(!error, "cannot make the folder ", folder.string(), ": ", error.message());
    state_->file = std::make_unique<AtomicFile>(state_->path);
    state_->file->write(header.data(), header.size());
  });
}

GgufWriter::~GgufWriter() = default;

void GgufWriter::add(const at::Tensor& part) {
  at::NoGradGuard no_grad;
  require(state_->next < state_->tensors.size(), "cannot write ", state_->path,
          ": all tensors are written already");
  const GgufTensor& tensor = state_->tensors[state_->next];
  const ggml::Type type = state_->type_of(tensor);
  const at::ScalarType dtype = type.quantized == nullptr ? type.dtype : at::kByte;
  const uint64_t bytes = uint64_t(part.numel()) * part.element_size();
  const uint64_t total = state_->bytes_of(tensor);
  require(part.scalar_type() == dtype && state_->written + bytes <= total, "cannot write ",
          state_->path, ": tensor ", in_quotes(tensor.name), ": expected ", dtype, " of ",
          total - state_->written, " bytes, got ", part.scalar_type(), " of ", bytes);
  at::Tensor whole = full_to_read(part);
  const bool is_last = state_->written + bytes == total;
  state_->on_first([&] {
    at::Tensor data = whole.to(at::kCPU).resolve_neg().contiguous();
    state_->file->write(data.const_data_ptr(), data.nbytes());
    const std::string padding(is_last ? aligned(total) - total : 0, '\0');
    state_->file->write(padding.data(), padding.size());
  });
  whole.reset();
  if (is_sharded(part)) return_free_memory();
  state_->written += bytes;
  if (!is_last) return;
  state_->written = 0;
  ++state_->next;
}

void GgufWriter::commit() {
  require(state_->next == state_->tensors.size(), "cannot write ", state_->path, ": ",
          state_->tensors.size() - state_->next, " tensors are missing");
  state_->on_first([&] { state_->file->commit(); });
  mesh::throw_together(state_->mesh.get(), state_->failure);
}

}  // namespace redco
