#include <redco/mesh.h>

#include "c10d_group.h"
#include "gloo.h"
#include "single.h"

#include <redco/error.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <array>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace redco {

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

Store with_prefix(const Store& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

// How this process reaches the others of its run. It lasts as long as the program: other processes
// may need the store that this one hosts after its last mesh is gone.
class Connection {
 public:
  static Connection& of(const MeshOptions& options) {
    static std::mutex mutex;
    static auto& all = *new std::map<std::string, Connection>;  // never destroyed, as above
    std::lock_guard lock(mutex);
    const Processes& processes = options.processes;
    std::string where = processes.store_address + ":" + std::to_string(processes.store_port);
    return all.try_emplace(where, options).first->second;
  }

  explicit Connection(const MeshOptions& options) {
    const Processes& processes = options.processes;
    c10d::TCPStoreOptions store;
    store.port = static_cast<uint16_t>(processes.store_port);
    store.isServer = processes.hosts_store;
    store.waitWorkers = false;
    store.timeout = options.timeout;
    try {
      store_ = with_prefix(c10::make_intrusive<c10d::TCPStore>(processes.store_address, store),
                           "redco/" + std::to_string(processes.attempt));
    } catch (const c10::Error& error) {
      fail("process ", processes.rank, " cannot ", store.isServer ? "open" : "reach",
           " the store of the run at ", processes.store_address, ":", processes.store_port, ": ",
           error.what_without_backtrace());
    }
  }

  /// A store of the next mesh alone. All processes make their meshes in the same order.
  Store next_mesh() { return with_prefix(store_, "mesh" + std::to_string(n_meshes_++)); }

 private:
  Store store_;
  int64_t n_meshes_ = 0;
};

// Waits until all processes are there.
void meet(c10d::Store& store, const MeshOptions& options) {
  auto key = [](int64_t rank) { return "joined/" + std::to_string(rank); };
  store.set(key(options.processes.rank), std::vector<uint8_t>{1});
  auto from = std::chrono::steady_clock::now();
  for (int64_t rank = 0; rank < options.processes.size; ++rank) {
    while (!store.check({key(rank)})) {
      check_interrupt();
      require(std::chrono::steady_clock::now() - from < options.timeout, "process ", rank, " of ",
              options.processes.size, " did not come within ",
              static_cast<double>(options.timeout.count()) / 1000, " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

class Grid : public Mesh {
 public:
  explicit Grid(const MeshOptions& options) : processes_(options.processes), device_(c10::kCPU) {
    auto [n, rank] = std::pair(processes_.size, processes_.rank);
    int64_t mp_size = options.n_model_shards, dp_size = n / mp_size;
    if (n == 1) {
      for (const char* name : {"dp", "mp", "world"}) groups_.push_back(make_single(name));
      return;
    }
    Store store = Connection::of(options).next_mesh();
    meet(*store, options);
    int64_t dp_index = rank / mp_size, mp_index = rank % mp_size;
    auto add = [&](const std::string& name, int64_t first, int64_t step, int64_t size) {
      if (size == 1) {
        groups_.push_back(make_single(name));
        return;
      }
      GroupParts parts;
      parts.name = name;
      parts.timeout = options.timeout;
      for (int64_t i = 0; i < size; ++i) {
        parts.processes.push_back(first + i * step);
        if (first + i * step == rank) parts.rank = i;
      }
      parts.backend = connect(with_prefix(store, name + std::to_string(first)), parts);
      groups_.push_back(make_c10d_group(std::move(parts)));
    };
    add("dp", mp_index, mp_size, dp_size);
    add("mp", dp_index * mp_size, 1, mp_size);
    add("world", 0, 1, n);
  }

  const Processes& processes() const override { return processes_; }
  c10::Device device() const override { return device_; }
  Group& group(Dim dim) const override { return *groups_[dim]; }
  Group& world() const override { return *groups_[n_dims]; }

 private:
  // Groups of the same processes share a backend.
  Backend connect(const Store& store, const GroupParts& parts) {
    Backend& backend = backends_[parts.processes];
    if (!backend.c10d)
      backend =
          make_gloo(store, parts.rank, static_cast<int64_t>(parts.processes.size()), parts.timeout,
                    processes_.store_address, processes_.local_size == processes_.size);
    return backend;
  }

  Processes processes_;
  c10::Device device_;
  std::map<std::vector<int64_t>, Backend> backends_;
  std::vector<std::unique_ptr<Group>> groups_;  // dp, mp, world
};

}  // namespace

std::shared_ptr<Mesh> Mesh::make(const MeshOptions& options) {
  int64_t n = options.processes.size;
  if (options.n_model_shards < 1 || n % options.n_model_shards != 0) {
    throw UsageError("n_model_shards = " + std::to_string(options.n_model_shards) +
                     " must divide the number of processes, " + std::to_string(n) +
                     ": one for each device; redco-lua --nproc N starts N of them");
  }
  return std::make_shared<Grid>(options);
}

}  // namespace redco
