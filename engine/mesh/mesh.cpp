// The mesh of a run's processes: connects them and makes their groups.

#include <redco/mesh.h>

#include "../core/require_usage.h"
#include "alone.h"
#include "c10d_group.h"
#include "gloo.h"
#include "host_group.h"
#include "nccl.h"
#include "run/connection.h"
#include "run/peers.h"
#include "schedulers.h"
#include "single.h"
#include "spmd_log.h"

#include <redco/detail/cores.h>
#include <redco/detail/notices.h>
#include <redco/detail/run_store.h>
#include <redco/detail/thread_without_signals.h>
#include <redco/error.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace redco {

using namespace mesh;

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

// Notes that are exchanged through the store of the run.
class StoreNotes final : public Notes {
 public:
  StoreNotes(const Store& store, const Connection& connection, Peers& peers, int64_t n_processes)
      : store_(with_prefix(store, "notes")), connection_(connection), peers_(peers) {
    for (int64_t rank = 0; rank < n_processes; ++rank) all_.push_back(rank);
  }

  void leave(const std::string& key, const std::string& text) override {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }

  std::string await(const std::string& key, const std::string& what) override {
    constexpr auto sleep = std::chrono::milliseconds(20);
    // Checks rarely: training checks too, and the checks of both are counted together.
    constexpr auto look_around = 5 * Peers::look_around;
    for (int64_t looks = 1; !store_->check({key}); ++looks) {
      std::this_thread::sleep_for(sleep);
      if (looks % (look_around / sleep) == 0) peers_.check([&] { return what; }, all_);
    }
    return store_->get_to_str(key);
  }

  std::string next_exchange() override {
    Alone::refuse([] { return "an exchange between the processes"; });
    // In a failed turn some processes may have begun more exchanges than others. So each reconnect
    // restarts the count.
    if (std::exchange(reconnects_, connection_.reconnects()) != connection_.reconnects())
      n_exchanges_ = 0;
    return std::to_string(reconnects_) + "/" + std::to_string(n_exchanges_++) + "/";
  }

 private:
  Store store_;
  const Connection& connection_;
  Peers& peers_;
  std::vector<int64_t> all_;
  int64_t reconnects_ = 0;
  int64_t n_exchanges_ = 0;
};

std::string meeting() { return "connecting the processes"; }

// A barrier: waits until all processes have reached `place`.
void meet(const std::string& place, c10d::Store& store, Peers& peers, const MeshOptions& options) {
  auto key = [&](int64_t rank) { return place + "/" + std::to_string(rank); };
  store.set(key(options.processes.rank), std::vector<uint8_t>{1});
  constexpr auto sleep = std::chrono::milliseconds(5);
  int64_t looks = 0;
  auto from = std::chrono::steady_clock::now();
  std::optional<Waiting> waiting;  // only on process 0
  if (options.processes.rank == 0) waiting.emplace("the other processes");
  for (int64_t rank = 0; rank < options.processes.size; ++rank) {
    if (waiting) waiting->change("process " + std::to_string(rank) + " to come");
    while (!store.check({key(rank)})) {
      check_interrupt();
      require(std::chrono::steady_clock::now() - from < options.timeout, "process ", rank, " of ",
              options.processes.size, " did not come within ",
              double(options.timeout.count()) / 1000, " s");
      std::this_thread::sleep_for(sleep);
      if (++looks % (Peers::look_around / sleep) != 0) continue;
      peers.check(meeting, {rank});
      peers.check_came(meeting, rank, [&] { return store.check({key(rank)}); });
    }
  }
}

// Hosts with different numbers of processes would make different groups.
void check_hosts_alike(c10d::Store& store, const Processes& processes) {
  for (int64_t rank = 0; rank < processes.size; ++rank) {
    std::string size = store.get_to_str("local_size/" + std::to_string(rank));
    require_usage(size == std::to_string(processes.local_size),
                  "zero_group = \"host\": the host of process ", rank, " has ", size,
                  " processes, that of process ", processes.rank, " has ", processes.local_size,
                  "; all hosts must have the same number, or give zero_group a number");
  }
}

// Returns the result of `connect`, which may wait forever for processes that do not connect. It
// runs on a thread that is abandoned when one of them fails or the time is over; `advice` says what
// to do then.
Backend connect_watched(std::function<Backend()> connect, const GroupParts& parts,
                        const std::string& advice) {
  auto task = std::make_shared<std::packaged_task<Backend()>>(std::move(connect));
  auto backend = task->get_future();
  Waiting waiting("connections to the other processes");
  const auto until = std::chrono::steady_clock::now() + parts.timeout;
  thread_without_signals([task] { (*task)(); }).detach();
  while (backend.wait_for(Peers::look_around) != std::future_status::ready) {
    check_interrupt();
    parts.peers->check(meeting, parts.processes);
    // A process adds the group, and so gives it its number, before it connects.
    parts.peers->check_started(meeting, parts.number, 0, parts.processes);
    require(std::chrono::steady_clock::now() < until, "the processes of group \"", parts.name,
            "\" did not connect within ", double(parts.timeout.count()) / 1000, " s; ", advice);
  }
  try {
    return backend.get();
  } catch (const c10::Error& error) {
    const std::string cause = error.what_without_backtrace();
    const bool share_gpu = cause.find("Duplicate GPU") != std::string::npos;  // says NCCL
    fail("the processes of group \"", parts.name, "\" cannot connect: ", cause, "; ",
         share_gpu ? "processes that share a GPU need REDCO_COLLECTIVES=gloo" : advice);
  }
}

// Returns advice for processes that do not reach each other.
std::string network_advice(bool is_on_host) {
  const std::string variable = is_on_host ? "GLOO_SOCKET_IFNAME" : "NCCL_SOCKET_IFNAME";
  const char* set = find_variable(variable.c_str());
  return variable + (set != nullptr ? " = " + std::string(set) : std::string()) +
         " names the network interface that connects the hosts" +
         (is_on_host ? "" : ", and NCCL_DEBUG=INFO logs what NCCL does");
}

// Whether collectives of device tensors run on the host with Gloo.
bool run_on_host() {
  const char* set = std::getenv(collectives_variable);
  std::string name = set == nullptr || *set == '\0' ? "nccl" : set;
  require_usage(name == "gloo" || name == "nccl", collectives_variable, " = ", name,
                ": the collectives of GPUs run by \"nccl\" or \"gloo\"");
  return name == "gloo";
}

c10::Device device_of(const MeshOptions& options) {
  if (options.device_type == c10::kCPU) return c10::kCPU;
  return device_backend(options.device_type)
      .use_device(options.processes.local_rank, options.processes.local_size, run_on_host());
}

// The number of processes that differ only in their model, context or expert shard.
int64_t n_shards_of(const MeshOptions& options) {
  return options.n_model_shards * options.n_context_shards * options.n_expert_shards;
}

int64_t n_processes_of_stage(const MeshOptions& options) {
  return options.processes.size / options.n_pipeline_stages;
}

// The number of data-parallel processes that share ZeRO's state.
int64_t zero_group_of(const MeshOptions& options) {
  const Processes& processes = options.processes;
  int64_t n_of_copy = n_shards_of(options);
  int64_t n_copies = n_processes_of_stage(options) / n_of_copy;
  if (options.zero_group == zero_group_of_all) return n_copies;
  int64_t n = options.zero_group;
  std::string name = "zero_group = " + std::to_string(n);
  if (n == zero_group_of_host) {
    require_usage(processes.rank % processes.local_size == processes.local_rank,
                  "zero_group = \"host\": process ", processes.rank, " is number ",
                  processes.local_rank, " of the ", processes.local_size,
                  " on its host: the processes of a host must have consecutive numbers");
    require_usage(processes.local_size % n_of_copy == 0, "zero_group = \"host\": the ",
                  processes.local_size, " processes of a host cannot be divided into models of ",
                  n_of_copy > options.n_model_shards
                      ? "n_model_shards * n_context_shards * n_expert_shards = "
                      : "n_model_shards = ",
                  n_of_copy);
    n = processes.local_size / n_of_copy;
    name = "zero_group = \"host\", " + std::to_string(n) + " here,";
  }
  require_usage(n >= 1 && n_copies % n == 0, name,
                " must divide the number of data-parallel processes, ", n_copies, " (",
                processes.size, " processes / ", n_of_copy, " that share a model)");
  return n;
}

Mesh::Shape shape_of(const MeshOptions& options) {
  Mesh::Shape shape;
  int64_t n_copies = n_processes_of_stage(options) / n_shards_of(options);
  shape[Mesh::mp] = options.n_model_shards;
  shape[Mesh::cp] = options.n_context_shards;
  shape[Mesh::ep] = options.n_expert_shards;
  shape[Mesh::dp] = zero_group_of(options);
  shape[Mesh::dp_replicate] = n_copies / shape[Mesh::dp];
  shape[Mesh::pp] = options.n_pipeline_stages;
  return shape;
}

class Grid : public Mesh, Connection::Lines {
 public:
  explicit Grid(const MeshOptions& options)
      : processes_(options.processes),
        device_(device_of(options)),
        is_on_host_(device_.is_cpu() || run_on_host()) {
    auto [n, rank] = std::pair(processes_.size, processes_.rank);
    Shape shape = shape_of(options);
    n_chunks_per_stage_ = options.n_chunks_per_stage;
    if (n == 1) {
      for (Dim dim : dims) groups_.push_back(make_single(facts[dim].name));
      groups_.push_back(make_single("world"));
      notes_ = make_own_notes();
      return;
    }
    Alone::refuse([] { return "a Deployer of all processes"; });
    connection_ = &Connection::of(processes_, options.timeout);
    if (device_.is_cuda() && !is_on_host_) set_nccl_variables(processes_);
    Peers& peers = connection_->peers();
    name_ = connection_->next_mesh();
    SpmdLog::get().turn_on();
    SpmdLog::get().add(
        "makes a mesh with n_model_shards = " + std::to_string(shape[mp]) +
        (shape[cp] > 1 ? ", n_context_shards = " + std::to_string(shape[cp]) : std::string()) +
        (shape[ep] > 1 ? ", n_expert_shards = " + std::to_string(shape[ep]) : std::string()) +
        (shape[pp] > 1 ? ", n_pipeline_stages = " + std::to_string(shape[pp]) : std::string()) +
        (n_chunks_per_stage_ > 1 ? ", n_chunks_per_stage = " + std::to_string(n_chunks_per_stage_)
                                 : std::string()) +
        (shape[dp_replicate] > 1 ? ", zero_group = " + std::to_string(shape[dp]) : std::string()));
    Store store = with_prefix(connection_->store(), name_);
    notes_ = std::make_unique<StoreNotes>(store, *connection_, peers, n);
    bool by_host = options.zero_group == zero_group_of_host;
    if (by_host) {
      std::string size = std::to_string(processes_.local_size);
      store->set("local_size/" + std::to_string(rank),
                 std::vector<uint8_t>(size.begin(), size.end()));
    }
    meet("joined", *store, peers, options);
    if (by_host) check_hosts_alike(*store, processes_);
    auto add_line = [&](const std::string& name, const Line& line, LinkKind link = LinkKind::none) {
      GroupParts parts;
      parts.name = name;
      parts.link = link;
      parts.rank = (rank - line.first) / line.step;
      for (int64_t i = 0; i < line.size; ++i) parts.processes.push_back(line.first + i * line.step);
      parts.timeout = options.timeout;
      parts.has_core = cores_per_process(processes_.local_size) > 0;
      parts.peers = &peers;
      auto connect = [this](GroupParts& unconnected) { this->connect(unconnected); };
      return lines_.emplace_back(std::make_shared<GroupLine>(std::move(parts), connect));
    };
    auto make_group = [&](const std::shared_ptr<GroupLine>& line) {
      auto group = make_c10d_group(line);
      return is_on_host_ && !device_.is_cpu() ? make_host_group(std::move(group))
                                              : std::move(group);
    };
    auto add = [&](const std::string& name, const Line& line) {
      groups_.push_back(line.size == 1 ? make_single(name) : make_group(add_line(name, line)));
      if (line.size > 1) lines_.back()->parts();
    };
    for (Dim dim : dims) add(facts[dim].name, line_of(dim, shape, rank));
    add("world", {0, 1, n});
    // Each link sends messages in one direction only, so that no message waits behind another one
    // whose receiver is not ready.
    const Line stages = line_of(pp, shape, rank);
    const int64_t own = (rank - stages.first) / stages.step;
    for (const auto& link : links_of(stages.size, n_chunks_per_stage_)) {
      const int64_t from = link.first % stages.size, to = link.second % stages.size;
      if (from != own && to != own) {
        peers.add_group();  // all processes count all groups
        continue;
      }
      auto line =
          add_line(name_of(link), {stages.first + from * stages.step, (to - from) * stages.step, 2},
                   link.first < link.second ? LinkKind::forward : LinkKind::back);
      line->parts();
      links_[link] = make_group(line);
    }
    // A process that continued and ended would close connections that others are about to make.
    meet("connected", *store, peers, options);
    connection_->add(this);
  }
  ~Grid() override {
    if (connection_ != nullptr) connection_->remove(this);
  }

  const Processes& processes() const override { return processes_; }
  c10::Device device() const override { return device_; }
  Group& group(Dim dim) const override { return *groups_[dim]; }
  Group& world() const override { return *groups_[n_dims]; }
  Notes& notes() const override { return *notes_; }
  int64_t reconnects() const override {
    return connection_ == nullptr ? 0 : connection_->reconnects();
  }

 private:
  void connect(GroupParts& parts) {
    std::lock_guard lock(mutex_);
    parts.number = parts.peers->add_group();
    // Groups of the same processes share a backend.
    Connection::Backends& backends = is_on_host_ ? backends_ : connection_->backends();
    Backend& backend = backends[{parts.processes, parts.link}];
    if (!backend.c10d || *backend.is_aborted) backend = make_backend(parts);
    parts.backend = backend;
  }

  Backend make_backend(const GroupParts& parts) {
    auto client = connection_->client_for_connecting();
    Store store =
        with_prefix(client->c10d(), name_ + "/" + std::to_string(connection_->reconnects()) + "/" +
                                        parts.name + std::to_string(parts.processes.front()));
    auto size = int64_t(parts.processes.size());
    // Longer than the group's own timeout, whose error names the missing processes.
    auto timeout = parts.timeout + std::chrono::minutes(1);
    auto connect = [client = std::move(client), store, rank = parts.rank, size, timeout,
                    processes = processes_, device = device_, is_on_host = is_on_host_]() mutable {
      auto used = std::move(client);  // held only until the connection is made
      if (!is_on_host)
        return device_backend(device.type()).connect({store, rank, size, timeout, device});
      return make_gloo(store, rank, size, timeout, processes.store_address,
                       processes.local_size == processes.size);
    };
    Backend backend = connect_watched(std::move(connect), parts, network_advice(is_on_host_));
    // Work on a GPU waits for its peers forever and blocks all later work.
    if (backend.runs_on_stream) parts.peers->on_failure(backend.aborter());
    return backend;
  }

  void disconnect() override {
    {
      std::lock_guard lock(mutex_);
      backends_.clear();
    }
    for (const auto& line : lines_) line->disconnect();
  }

  Processes processes_;
  c10::Device device_;
  bool is_on_host_;                   // whether collectives run on the host
  Connection* connection_ = nullptr;  // null for one process
  std::string name_;                  // the prefix of its keys in the store
  std::mutex mutex_;
  Connection::Backends backends_;  // those that run on the host
  std::unique_ptr<Notes> notes_;
  std::vector<std::shared_ptr<GroupLine>> lines_;
  std::vector<std::unique_ptr<Group>> groups_;  // of the dimensions, and world
};

}  // namespace

Notes& Mesh::notes() const { fail("this mesh has no notes: it is not one of processes"); }

std::vector<Mesh::Dim> Mesh::dims_of(Role role) {
  std::vector<Dim> found;
  for (Dim dim : dims)
    if (has(dim, role)) found.push_back(dim);
  return found;
}

int64_t Mesh::size(Role role) const {
  int64_t n = 1;
  for (Dim dim : dims_of(role)) n *= size(dim);
  return n;
}

Mesh::Line Mesh::line_of(Dim dim, const Shape& shape, int64_t rank) {
  int64_t step = 1;
  for (Dim inner : from_innermost) {
    if (inner == dim) break;
    step *= shape[inner];
  }
  return {rank - rank / step % shape[dim] * step, step, shape[dim]};
}

std::shared_ptr<Mesh> Mesh::make(const MeshOptions& options) {
  int64_t n = options.processes.size;
  require_usage(options.n_model_shards >= 1 && n % options.n_model_shards == 0,
                "n_model_shards = ", options.n_model_shards,
                " must divide the number of processes, ", n,
                ": one for each device; redco-lua --nproc N starts N of them");
  int64_t n_copies = n / options.n_model_shards;
  require_usage(options.n_context_shards >= 1 && n_copies % options.n_context_shards == 0,
                "n_context_shards = ", options.n_context_shards, " must divide ", n_copies,
                ", the number of processes / n_model_shards");
  n_copies /= options.n_context_shards;
  require_usage(options.n_expert_shards >= 1 && n_copies % options.n_expert_shards == 0,
                "n_expert_shards = ", options.n_expert_shards, " must divide ", n_copies,
                ", the number of copies of the model");
  n_copies /= options.n_expert_shards;
  require_usage(options.n_pipeline_stages >= 1 && n_copies % options.n_pipeline_stages == 0,
                "n_pipeline_stages = ", options.n_pipeline_stages, " must divide ", n_copies,
                ", the number of processes / (n_model_shards * n_context_shards * "
                "n_expert_shards)");
  require_usage(options.n_chunks_per_stage >= 1,
                "n_chunks_per_stage = ", options.n_chunks_per_stage, " must be positive");
  require_usage(options.n_chunks_per_stage == 1 || options.n_pipeline_stages > 1,
                "n_chunks_per_stage = ", options.n_chunks_per_stage,
                " divides the stages of a pipeline: give n_pipeline_stages, too");
  return std::make_shared<Grid>(options);
}

void report_failure(const std::string& text, int exit_code) {
  try {
    bool reported = false;
    Connection::for_each([&](Connection& connection) {
      connection.peers().report_failure(text, exit_code);
      reported = true;
    });
    if (reported) return;
    // The process failed before it made a mesh, and the others may be waiting for it.
    Processes processes = find_processes();
    if (processes.size == 1 || processes.hosts_store) return;
    RunStore::connect(processes, std::chrono::seconds(2))
        ->note_failure({processes.rank, text, exit_code});
  } catch (const std::exception&) {
    // The others will notice that this process is gone.
  }
}

}  // namespace redco
