// Writes safetensors files, also of sharded tensors.

#include "safetensors_writer.h"

#include "../../io/strict_json.h"
#include "../../mesh/run/agreement.h"
#include "safetensors_format.h"

#include <redco/detail/free_memory.h>
#include <redco/detail/read_whole.h>
#include <redco/error.h>
#include <redco/safetensors.h>
#include <redco/sharding.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace redco::safetensors {

using namespace io;
using namespace mesh;

using nlohmann::json;

void sort_by_dtype(std::vector<const Tensors::value_type*>& items) {
  std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
    return find_dtype(a->second.scalar_type()) < find_dtype(b->second.scalar_type());
  });
}

std::string header_of(const std::string& path, const std::vector<const Tensors::value_type*>& items,
                      const Metadata& metadata) {
  std::string where = "cannot write " + path + ": ";
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"" + metadata_key + "\":{";
    for (const auto& [key, value] : metadata)
      header += json_string(where, key) + ":" + json_string(where, value) + ",";
    header.back() = '}';
    header += ",";
  }
  size_t offset = 0;
  for (const auto* item : items) {
    const auto& [name, tensor] = *item;
    size_t end = offset + size_t(tensor.numel()) * tensor.element_size();
    header += json_string(where, name) + ":{\"dtype\":\"" + find_dtype(tensor.scalar_type())->name +
              "\",\"shape\":" + json(tensor.sizes().vec()).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(end) + "]},";
    offset = end;
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  require(header.size() <= max_header, where, "the header would have ", header.size(),
          " bytes, expected at most ", max_header, "; there are too many names or metadata");
  uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header;
}

void check_tensor(const std::string& path, const Tensors::value_type& item) {
  const auto& [name, tensor] = item;
  auto refuse = [&, &name = name](const std::string& reason) {
    fail("cannot write ", path, ": tensor ", in_quotes(name), " ", reason);
  };
  if (name == metadata_key) refuse("has the name the format reserves");
  if (!tensor.defined()) refuse("is undefined");
  if (tensor.layout() != at::kStrided) refuse("is not dense; make it so with to_dense()");
  if (tensor.is_meta()) refuse("is on the device meta, which keeps no data");
  if (find_dtype(tensor.scalar_type()) == std::end(dtypes))
    refuse(std::string("has dtype ") + c10::toString(tensor.scalar_type()) +
           ", which the format lacks" + (tensor.is_complex() ? "; save view_as_real() of it" : ""));
}

Writer::Writer(std::shared_ptr<const Mesh> mesh)
    : mesh_(std::move(mesh)), is_first_(!mesh_ || mesh_->processes().rank == 0) {}

void Writer::write(const std::string& path, std::vector<const Tensors::value_type*> items,
                   const Metadata& metadata) {
  at::NoGradGuard no_grad;
  sort_by_dtype(items);
  std::string header = header_of(path, items, metadata);
  on_first([&] {
    files_.push_back(std::make_unique<AtomicFile>(path));
    files_.back()->write(header.data(), header.size());
  });
  for (const auto* item : items) {
    at::Tensor whole = full_to_read(item->second);
    on_first([&] {
      at::Tensor data = whole.to(at::kCPU).resolve_neg().contiguous();
      files_.back()->write(data.const_data_ptr(), data.nbytes());
    });
    whole.reset();
    // glibc does not reuse the hole of an aligned block for another of the same size.
    if (is_sharded(item->second)) return_free_memory();
  }
  on_first([&] { files_.back()->finish(); });
}

void Writer::on_first(const std::function<void()>& step) {
  if (!is_first_ || failure_) return;
  try {
    step();
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

void Writer::commit() {
  on_first([&] {
    for (auto& file : files_) file->commit();
  });
}

void Writer::agree() { throw_together(mesh_.get(), failure_); }

}  // namespace redco::safetensors

namespace redco {

void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::shared_ptr<const Mesh> mesh;
  std::vector<const safetensors::Tensors::value_type*> items;
  for (const auto& item : tensors) {
    safetensors::check_tensor(path, item);
    items.push_back(&item);
    if (!mesh) mesh = mesh_of(item.second);
  }
  safetensors::Writer writer(mesh);
  writer.write(path, items, metadata);
  writer.commit();
  writer.agree();
}

}  // namespace redco
