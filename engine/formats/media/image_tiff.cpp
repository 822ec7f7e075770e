#include "image_formats.h"

#include <redco/error.h>

#include <ATen/ops/empty.h>
#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

namespace redco::image_formats {

namespace {

struct Source {
  std::string_view bytes;
  uint64_t place = 0;
  std::string error = {};
  bool lacks_data = false;
};

tmsize_t read_tiff(thandle_t handle, void* to, tmsize_t size) {
  auto& source = *static_cast<Source*>(handle);
  if (source.place >= source.bytes.size()) return 0;
  size_t n = std::min(size_t(size), source.bytes.size() - source.place);
  std::memcpy(to, source.bytes.data() + source.place, n);
  source.place += n;
  return tmsize_t(n);
}

tmsize_t write_tiff(thandle_t, void*, tmsize_t) { return 0; }

uint64_t seek_tiff(thandle_t handle, uint64_t offset, int from) {
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

// libtiff only warns if the data of a JPEG strip ends too early or has too few rows.
int keep_warning_of_jpeg(TIFF* tiff, void* source, const char* module, const char* format,
                         va_list arguments) {
  bool lacks_data = (module != nullptr && std::string_view(module) == "JPEGLib") ||
                    std::string_view(format).starts_with("Improper JPEG");
  if (!lacks_data) return 1;
  static_cast<Source*>(source)->lacks_data = true;
  return keep_error(tiff, source, module, format, arguments);
}

struct Free {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

constexpr tmsize_t max_allocation = tmsize_t(1) << 30;

// Returns the fewest bytes in which a strip of `rows` rows, or a tile, can be stored.
uint64_t fewest_bytes(TIFF* tiff, uint16_t compression, uint32_t width, uint32_t rows) {
  switch (compression) {
    case COMPRESSION_NONE:
      return uint64_t(TIFFIsTiled(tiff) ? TIFFTileSize(tiff) : TIFFVStripSize(tiff, rows));
    case COMPRESSION_CCITTRLE:
    case COMPRESSION_CCITTFAX3:
    case COMPRESSION_CCITTFAX4:
    case COMPRESSION_CCITTRLEW:
      return rows / 8;  // a bit for a row
    case COMPRESSION_JPEG:
      return uint64_t(width) * rows / 256;  // two bits for a block of 64 pixels
    default:
      return 1;
  }
}

// Checks from their offsets and sizes that the file has the data of all strips or tiles. libtiff
// treats a strip without an offset as empty.
void check_data(const std::string& name, TIFF* tiff, uint64_t file_size, uint32_t width,
                uint32_t height) {
  uint16_t compression = 0, planes = 0;
  uint32_t rows = 0;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_COMPRESSION, &compression);
  TIFFGetFieldDefaulted(tiff, TIFFTAG_PLANARCONFIG, &planes);
  if (compression == COMPRESSION_OJPEG) return;  // its data may be elsewhere
  bool is_tiled = TIFFIsTiled(tiff) != 0;
  if (is_tiled) {
    TIFFGetField(tiff, TIFFTAG_TILEWIDTH, &width);
    TIFFGetField(tiff, TIFFTAG_TILELENGTH, &rows);
  } else {
    TIFFGetFieldDefaulted(tiff, TIFFTAG_ROWSPERSTRIP, &rows);
  }
  rows = std::min(rows, is_tiled ? rows : height);
  require(rows > 0, name, ": not a TIFF file that can be read: its strips have no rows");
  uint32_t n = is_tiled ? TIFFNumberOfTiles(tiff) : TIFFNumberOfStrips(tiff);
  uint32_t n_down = (height - 1) / rows + 1;  // strips of a plane
  for (uint32_t i = 0; i < n; ++i) {
    bool is_last = !is_tiled && i % n_down == n_down - 1;
    uint64_t wanted =
        fewest_bytes(tiff, compression, width, is_last ? height - rows * (n_down - 1) : rows);
    uint64_t offset = TIFFGetStrileOffset(tiff, i), count = TIFFGetStrileByteCount(tiff, i);
    // Some writers note a wrong number for data that is not compressed.
    if (compression != COMPRESSION_NONE) wanted = std::max(wanted, count);
    wanted = std::max<uint64_t>(wanted, 1);
    uint64_t there = offset == 0 || offset >= file_size ? 0 : std::min(count, file_size - offset);
    require(there >= wanted, name, ": the TIFF file is truncated: it has ", there, " bytes of ",
            is_tiled ? "tile " : "strip ", i + 1, " of ", n, ", expected at least ", wanted);
  }
}

}  // namespace

at::Tensor decode_tiff(const std::string& name, std::string_view bytes) {
  Source source{bytes};
  std::unique_ptr<TIFFOpenOptions, Free> options(TIFFOpenOptionsAlloc());
  require(options != nullptr, name, ": libtiff is out of memory");
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), keep_error, &source);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), keep_warning_of_jpeg, &source);
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), max_allocation);
  auto check = [&](bool is_good) {
    require(is_good, name, ": not a TIFF file that can be read: ", source.error);
  };
  std::unique_ptr<TIFF, Free> tiff(TIFFClientOpenExt(name.c_str(), "rm", &source, read_tiff,
                                                     write_tiff, seek_tiff, close, size, nullptr,
                                                     nullptr, options.get()));
  check(tiff != nullptr);
  uint32_t width = 0, height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  at::Tensor pixels = new_pixels(name, width, height);
  check_data(name, tiff.get(), bytes.size(), width, height);
  // Declares the colours premultiplied, so that libtiff does not multiply them by alpha.
  uint16_t n_extra = 0, *extra = nullptr, associated = EXTRASAMPLE_ASSOCALPHA;
  if (TIFFGetField(tiff.get(), TIFFTAG_EXTRASAMPLES, &n_extra, &extra) && n_extra == 1)
    TIFFSetField(tiff.get(), TIFFTAG_EXTRASAMPLES, 1, &associated);
  // Without values, so that a file with little data takes little memory.
  at::Tensor all = at::empty({int64_t(width) * height}, at::kInt);
  auto* from = static_cast<uint32_t*>(all.data_ptr());
  bool is_read =
      TIFFReadRGBAImageOriented(tiff.get(), width, height, from, ORIENTATION_TOPLEFT, 1) == 1;
  check(is_read && !source.lacks_data);
  auto* to = pixels.data_ptr<uint8_t>();
  for (int64_t i = 0, n = all.numel(); i < n; ++i) {
    uint32_t pixel = from[i];
    *to++ = TIFFGetR(pixel);
    *to++ = TIFFGetG(pixel);
    *to++ = TIFFGetB(pixel);
  }
  return pixels;
}

}  // namespace redco::image_formats
