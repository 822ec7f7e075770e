#include "image_formats.h"

#include <redco/error.h>

#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace redco::image_formats {

namespace {

struct Source {
  std::string_view bytes;
  uint64_t place = 0;
  std::string error;
};

tmsize_t read(thandle_t handle, void* to, tmsize_t size) {
  auto& source = *static_cast<Source*>(handle);
  if (source.place >= source.bytes.size()) return 0;
  size_t n = std::min(size_t(size), source.bytes.size() - source.place);
  std::memcpy(to, source.bytes.data() + source.place, n);
  source.place += n;
  return tmsize_t(n);
}

tmsize_t write(thandle_t, void*, tmsize_t) { return 0; }

uint64_t seek(thandle_t handle, uint64_t offset, int from) {
  auto& source = *static_cast<Source*>(handle);
  if (from == SEEK_CUR) offset += source.place;
  if (from == SEEK_END) offset += source.bytes.size();
  return source.place = offset;
}

int close(thandle_t) { return 0; }

uint64_t size(thandle_t handle) { return static_cast<Source*>(handle)->bytes.size(); }

// The first error is the cause of the others.
int keep_error(TIFF*, void* source, const char*, const char* format, va_list arguments) {
  std::string& error = static_cast<Source*>(source)->error;
  char text[200];
  std::vsnprintf(text, sizeof text, format, arguments);
  if (error.empty()) error = text;
  return 1;
}

int ignore_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }

struct Free {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

constexpr tmsize_t max_allocation = tmsize_t(1) << 30;

}  // namespace

at::Tensor decode_tiff(const std::string& name, std::string_view bytes) {
  Source source{bytes, 0, ""};
  std::unique_ptr<TIFFOpenOptions, Free> options(TIFFOpenOptionsAlloc());
  require(options != nullptr, name, ": libtiff is out of memory");
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), keep_error, &source);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), ignore_warning, nullptr);
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), max_allocation);
  auto check = [&](bool is_good) {
    require(is_good, name, ": not a TIFF file that can be read: ", source.error);
  };
  std::unique_ptr<TIFF, Free> tiff(TIFFClientOpenExt(name.c_str(), "rm", &source, read, write, seek,
                                                     close, size, nullptr, nullptr, options.get()));
  check(tiff != nullptr);
  uint32_t width = 0, height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  at::Tensor pixels = new_pixels(name, width, height);
  // So that colours are not multiplied by alpha.
  uint16_t n_extra = 0, *extra = nullptr, associated = EXTRASAMPLE_ASSOCALPHA;
  if (TIFFGetField(tiff.get(), TIFFTAG_EXTRASAMPLES, &n_extra, &extra) && n_extra == 1)
    TIFFSetField(tiff.get(), TIFFTAG_EXTRASAMPLES, 1, &associated);
  std::vector<uint32_t> all(size_t(width) * height);
  check(TIFFReadRGBAImageOriented(tiff.get(), width, height, all.data(), ORIENTATION_TOPLEFT, 1) ==
        1);
  auto* to = pixels.data_ptr<uint8_t>();
  for (uint32_t pixel : all) {
    *to++ = TIFFGetR(pixel);
    *to++ = TIFFGetG(pixel);
    *to++ = TIFFGetB(pixel);
  }
  return pixels;
}

}  // namespace redco::image_formats
