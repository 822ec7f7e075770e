// A file of torch.save. Any other input is the pickle of such a file, with the storages "0" of 64
// bytes and "1" of 3 bytes.
#include "memory_file.h"
#include "zip_of.h"

#include <redco/error.h>
#include <redco/safetensors.h>
#include <redco/weights.h>

namespace {

// Reads the storage of a tensor, which must contain all elements of the tensor.
void read_storage(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  size_t end = size_t(last + 1) * tensor.element_size();
  if (tensor.numel() > 0 && end > tensor.storage().nbytes()) abort();
  volatile unsigned sum = 0;
  const auto* bytes = static_cast<const unsigned char*>(tensor.storage().data());
  for (size_t i = 0; i < tensor.storage().nbytes(); ++i) sum = sum + bytes[i];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(text_of(data, size));
  if (!bytes.starts_with("PK") && !bytes.starts_with("\x80\x02\x8a\x0a"))
    bytes = zip_of({{"archive/data.pkl", bytes},
                    {"archive/byteorder", "little"},
                    {"archive/data/0", std::string(64, '\1')},
                    {"archive/data/1", std::string(3, '\1')}},
                   64);
  MemoryFile file(bytes);
  try {
    for (const auto& [path, tensor] : redco::named_tensors(redco::load_tree(file.path())))
      read_storage(tensor);
  } catch (const redco::Error&) {
  }
  try {
    read_all(redco::Weights(file.path()));
  } catch (const redco::Error&) {
  }
  return 0;
}
