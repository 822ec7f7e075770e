#include "image_formats.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <turbojpeg.h>

#include <memory>

namespace redco::image_formats {

namespace {

// Converts CMYK to RGB as Pillow does. Files contain inverted CMYK, as Adobe's programs write it.
void from_cmyk(const uint8_t* from, int64_t n_pixels, uint8_t* to) {
  for (int64_t i = 0; i < n_pixels; ++i, from += 4, to += 3) {
    for (int channel = 0; channel < 3; ++channel) {
      int product = (255 - from[channel]) * from[3] + 128;
      to[channel] = uint8_t(from[3] - (((product >> 8) + product) >> 8));
    }
  }
}

}  // namespace

at::Tensor decode_jpeg(const std::string& name, std::string_view bytes) {
  std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  require(decoder != nullptr, name, ": ", tjGetErrorStr2(nullptr));
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  auto check = [&](int status) {
    require(status == 0, name, ": not a valid JPEG file: ", tjGetErrorStr2(decoder.get()));
  };
  int width = 0, height = 0, subsampling = 0, colours = -1;
  int status = tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling,
                                   &colours);
  // TurboJPEG reports an error for subsampling that it has no name for, but decodes it.
  if (colours < 0 || subsampling >= 0) check(status);
  at::Tensor pixels = new_pixels(name, width, height);
  bool has_ink = colours == TJCS_CMYK || colours == TJCS_YCCK;
  at::Tensor ink = has_ink ? at::empty({height, width, 4}, at::kByte) : pixels;
  check(tjDecompress2(decoder.get(), data, bytes.size(), ink.data_ptr<uint8_t>(), width, 0, height,
                      has_ink ? TJPF_CMYK : TJPF_RGB, TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS));
  if (has_ink)
    from_cmyk(ink.data_ptr<uint8_t>(), int64_t(width) * height, pixels.data_ptr<uint8_t>());
  return pixels;
}

}  // namespace redco::image_formats
