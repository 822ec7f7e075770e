#include "image_formats.h"

#include <redco/error.h>

#include <bit>
#include <cstdlib>

namespace redco::image_formats {

namespace {

struct Reader {
  const std::string& name;
  std::string_view bytes;

  uint32_t number(size_t place, int n_bytes) const {
    require(place + n_bytes <= bytes.size(), name, ": not a valid BMP file: it ends too early");
    uint32_t value = 0;
    for (int i = n_bytes; i-- > 0;) value = value << 8 | uint8_t(bytes[place + i]);
    return value;
  }
};

// The bits of a channel in a pixel, and their largest value.
struct Channel {
  uint32_t mask;

  uint8_t of(uint32_t pixel) const {
    if (mask == 0) return 0;
    uint32_t largest = mask >> std::countr_zero(mask);
    return uint8_t(((pixel & mask) >> std::countr_zero(mask)) * uint64_t(255) / largest);
  }
};

struct Header {
  int64_t width, height, row_size;
  bool is_top_down, has_numbers;
  int n_bits;
  size_t pixels, colours;  // their places
  uint32_t n_colours;
  int colour_size;
  Channel channels[3];
};

constexpr uint32_t plain = 0, masks = 3, masks_with_alpha = 6;

Header read_header(const Reader& file) {
  Header header{};
  uint32_t size = file.number(14, 4);
  bool is_old = size == 12;
  require(is_old || size >= 40, file.name, ": not a valid BMP file: a header of ", size, " bytes");
  header.pixels = file.number(10, 4);
  // Signed, as a negative height says that the first row comes first.
  auto side = [&](size_t old_place, size_t place) {
    return is_old ? int32_t(file.number(old_place, 2)) : int32_t(file.number(place, 4));
  };
  header.width = side(18, 18);
  int64_t height = side(20, 22);
  header.is_top_down = height < 0;
  header.height = std::abs(height);
  header.n_bits = int(file.number(is_old ? 24 : 28, 2));
  uint32_t compression = is_old ? plain : file.number(30, 4);
  require(compression == plain || compression == masks || compression == masks_with_alpha,
          file.name, ": a BMP file with compression ", compression,
          ", only files without it are read");
  bool has_masks = compression != plain;
  header.has_numbers = header.n_bits <= 8;
  int n = header.n_bits;
  require(n == 1 || n == 4 || n == 8 || n == 16 || n == 24 || n == 32, file.name,
          ": a BMP file with ", n, " bits a pixel");
  header.row_size = (header.width * n + 31) / 32 * 4;
  header.colours = 14 + size;
  header.colour_size = is_old ? 3 : 4;
  header.n_colours = is_old ? 0 : file.number(46, 4);
  if (header.n_colours == 0 && n <= 8) header.n_colours = 1u << n;
  uint32_t defaults[3] = {n == 16 ? 0x7C00u : 0xFF0000u, n == 16 ? 0x3E0u : 0xFF00u,
                          n == 16 ? 0x1Fu : 0xFFu};
  // The masks follow a header of 40 bytes; longer headers contain them at the same place.
  for (int i = 0; i < 3; ++i)
    header.channels[i].mask = has_masks ? file.number(54 + 4 * i, 4) : defaults[i];
  return header;
}

}  // namespace

at::Tensor decode_bmp(const std::string& name, std::string_view bytes) {
  Reader file{name, bytes};
  Header header = read_header(file);
  at::Tensor pixels = new_pixels(name, header.width, header.height);
  int n_bits = header.n_bits;
  for (int64_t y = 0; y < header.height; ++y) {
    auto* to = pixels.data_ptr<uint8_t>() + y * header.width * 3;
    size_t row =
        header.pixels + (header.is_top_down ? y : header.height - 1 - y) * size_t(header.row_size);
    for (int64_t x = 0; x < header.width; ++x, to += 3) {
      if (!header.has_numbers) {
        uint32_t pixel = file.number(row + x * n_bits / 8, n_bits / 8);
        for (int i = 0; i < 3; ++i) to[i] = header.channels[i].of(pixel);
        continue;
      }
      uint32_t byte = file.number(row + x * n_bits / 8, 1);
      uint32_t number = byte >> (8 - n_bits - x * n_bits % 8) & ((1u << n_bits) - 1);
      size_t colour = header.colours + number * size_t(header.colour_size);
      for (int i = 0; i < 3; ++i)  // blue comes first
        to[i] = number < header.n_colours ? uint8_t(file.number(colour + 2 - i, 1)) : 0;
    }
  }
  return pixels;
}

}  // namespace redco::image_formats
