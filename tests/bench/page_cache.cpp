// Measures how fast the machine reads a file in the page cache. Loading is compared with it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

double gigabytes_per_second(size_t size, const std::function<void()>& body) {
  std::vector<double> rates;
  for (int round = 0; round < 7; ++round) {
    auto start = std::chrono::steady_clock::now();
    body();
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rates.push_back(double(size) / seconds.count() / 1e9);
  }
  std::nth_element(rates.begin(), rates.begin() + 3, rates.end());
  return rates[3];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "Usage: bench_page_cache FILE\n");
    return 2;
  }
  int file = open(argv[1], O_RDONLY);
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) return std::perror(argv[1]), 1;
  auto size = size_t(status.st_size);
  std::vector<char> filled(size, 1), small(1 << 20);
  auto copy = [&](size_t n_threads) {
    void* base = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n_threads; ++i) {
      size_t begin = size * i / n_threads, end = size * (i + 1) / n_threads;
      threads.emplace_back([=, &filled] {
        std::memcpy(filled.data() + begin, static_cast<char*>(base) + begin, end - begin);
      });
    }
    for (std::thread& thread : threads) thread.join();
    munmap(base, size);
  };
  // As loading has to: into memory that was not touched before, in huge pages.
  auto copy_to_fresh = [&] {
    void* base = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    void* fresh = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(fresh, size, MADV_HUGEPAGE);
    std::memcpy(fresh, base, size);
    munmap(fresh, size);
    munmap(base, size);
  };
  auto read_all = [&] {
    lseek(file, 0, SEEK_SET);
    while (read(file, small.data(), small.size()) > 0) {
    }
  };
  std::string other = std::string(argv[1]) + ".copy";
  auto write_all = [&] {
    int out = open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t done = 0; done < size;) {
      ssize_t count = write(out, filled.data() + done, size - done);
      if (count <= 0) std::abort();
      done += size_t(count);
    }
    if (fsync(out) != 0) std::abort();
    close(out);
  };
  read_all();
  std::printf("{\"name\": \"page_cache\", \"read into 1 MB\": %.2f, \"copy\": %.2f, ",
              gigabytes_per_second(size, read_all), gigabytes_per_second(size, [&] { copy(1); }));
  std::printf(
      "\"copy, 2 threads\": %.2f, \"copy to fresh memory\": %.2f, \"write and sync\": %.2f}\n",
      gigabytes_per_second(size, [&] { copy(2); }), gigabytes_per_second(size, copy_to_fresh),
      gigabytes_per_second(size, write_all));
  unlink(other.c_str());
}
