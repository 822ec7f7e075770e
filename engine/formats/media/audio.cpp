// Decodes sound files with libsndfile.

#include <redco/audio.h>

#include <redco/error.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <sndfile.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace redco {

namespace {

constexpr int64_t max_samples = int64_t(1) << 29;
constexpr int64_t block_size = 1 << 16;  // samples

// ---- libsndfile reads from memory. ----

struct MemoryFile {
  std::string_view bytes;
  sf_count_t place = 0;
};

MemoryFile& file_of(void* data) { return *static_cast<MemoryFile*>(data); }

sf_count_t size_of(void* data) { return sf_count_t(file_of(data).bytes.size()); }

sf_count_t place_of(void* data) { return file_of(data).place; }

sf_count_t seek_sound(sf_count_t offset, int whence, void* data) {
  MemoryFile& file = file_of(data);
  sf_count_t start = whence == SEEK_CUR ? file.place : whence == SEEK_END ? size_of(data) : 0;
  if (offset < -start || offset > size_of(data) - start) return -1;
  return file.place = start + offset;
}

sf_count_t read_sound(void* target, sf_count_t count, void* data) {
  MemoryFile& file = file_of(data);
  count = std::clamp<sf_count_t>(count, 0, size_of(data) - file.place);
  std::memcpy(target, file.bytes.data() + file.place, count);
  file.place += count;
  return count;
}

sf_count_t write_sound(const void*, sf_count_t, void*) { return 0; }

// ---- libsndfile reads the rest of a truncated WAV or Ogg file without an error. ----

uint32_t number_at(std::string_view bytes, size_t place) {
  uint32_t number = 0;
  for (size_t i = 4; i-- > 0;) number = number << 8 | uint8_t(bytes[place + i]);
  return number;
}

// Whether a chunk ends after the file. A program that writes to a pipe cannot return to the header,
// and gives the largest length there.
bool is_cut_wav(std::string_view bytes) {
  for (size_t place = 12; place + 8 <= bytes.size();) {
    uint64_t size = number_at(bytes, place + 4);
    if (size >= 0x7FFFF000) return false;
    place += 8 + size + size % 2;
    // A last byte of padding is often missing.
    if (place > bytes.size() + size % 2) return true;
  }
  return bytes.find("data") == bytes.npos;
}

// Whether the last page is not marked as the end.
bool is_cut_ogg(std::string_view bytes) {
  size_t page = bytes.rfind("OggS");
  if (page == bytes.npos || page + 27 > bytes.size()) return true;
  size_t n_segments = uint8_t(bytes[page + 26]), size = 27 + n_segments;
  if (page + size > bytes.size()) return true;
  for (size_t i = 0; i < n_segments; ++i) size += uint8_t(bytes[page + 27 + i]);
  constexpr uint8_t is_last = 4;
  return page + size > bytes.size() || (uint8_t(bytes[page + 5]) & is_last) == 0;
}

struct SoundFormat {
  const char* name;
  std::string_view signature;
  std::string_view kind;                   // at byte 8, if any
  bool (*is_cut)(std::string_view bytes);  // null: libsndfile reports it
};

constexpr SoundFormat sound_formats[] = {
    {"WAV", "RIFF", "WAVE", is_cut_wav},
    {"FLAC", "fLaC", "", nullptr},
    {"Ogg", "OggS", "", is_cut_ogg},
};

const SoundFormat& format_of(const std::string& name, std::string_view bytes) {
  for (const SoundFormat& format : sound_formats)
    if (bytes.starts_with(format.signature) &&
        (format.kind.empty() || (bytes.size() >= 12 && bytes.substr(8).starts_with(format.kind))))
      return format;
  fail(name, ": not a WAV, FLAC or Ogg file, by its first bytes");
}

}  // namespace

Audio decode_audio(const std::string& name, std::string_view bytes) {
  const SoundFormat& format = format_of(name, bytes);
  require(!format.is_cut || !format.is_cut(bytes), name, ": a truncated ", format.name, " file");
  MemoryFile memory{bytes};
  SF_VIRTUAL_IO functions = {size_of, seek_sound, read_sound, write_sound, place_of};
  SF_INFO info = {};
  std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(
      sf_open_virtual(&functions, SFM_READ, &info, &memory), sf_close);
  require(file != nullptr, name, ": not a valid ", format.name, " file: ", sf_strerror(nullptr));
  require(info.channels > 0 && info.frames >= 0 && info.samplerate > 0, name, ": not a valid ",
          format.name, " file: ", info.channels, " channels of ", info.frames, " samples at ",
          info.samplerate, " Hz");
  require(info.frames <= max_samples / info.channels, name, ": ", info.frames, " samples in ",
          info.channels, " channels; at most ", max_samples, " samples are read");
  // Reads blocks, because a header may claim more samples than the file has.
  std::vector<float> samples;
  int64_t n_frames = 0, in_block = std::max<int64_t>(block_size / info.channels, 1);
  while (n_frames < info.frames) {
    int64_t wanted = std::min(in_block, int64_t(info.frames) - n_frames);
    samples.resize((n_frames + wanted) * info.channels);
    int64_t got = sf_readf_float(file.get(), samples.data() + n_frames * info.channels, wanted);
    require(sf_error(file.get()) == SF_ERR_NO_ERROR, name, ": not a valid ", format.name,
            " file: ", sf_strerror(file.get()));
    require(got > 0, name, ": a truncated ", format.name, " file: ", n_frames, " of ", info.frames,
            " samples");
    n_frames += got;
  }
  at::Tensor frames = at::from_blob(samples.data(), {n_frames, info.channels}, at::kFloat);
  require(at::isfinite(frames).all().item<bool>(), name, ": NaN or infinity among the samples");
  return {frames.t().clone(at::MemoryFormat::Contiguous), info.samplerate};
}

}  // namespace redco
