// Saves that are killed, or that fail, at each of their calls: the earlier checkpoint or the new
// one is there, whole.
#include <redco/checkpoint.h>
#include <redco/detail/run_secret.h>
#include <redco/detail/run_store.h>
#include <redco/error.h>

#include "checkpoints.h"
#include "faulty_files.h"
#include "files.h"
#include "selection.h"
#include "thread_mesh.h"

#include <ATen/ops/full.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;
using redco::Tree;

namespace {

using Plan = std::map<std::string, std::string>;

void plan_faults(const Folder& folder, const Plan& plan) {
  for (const char* name : {"_CALL", "_ACT", "_NAME", "_KIND", "_LOG", "_NO_EXCHANGE"})
    unsetenv((std::string("FAULTY_FILES") + name).c_str());
  setenv("FAULTY_FILES", folder.path.c_str(), 1);
  setenv("FAULTY_FILES_NO_SYNC", "1", 1);
  for (const auto& [name, value] : plan) setenv(("FAULTY_FILES_" + name).c_str(), value.c_str(), 1);
  plan_faulty_files();
}

/// How a run saves.
struct Way {
  int64_t n_processes = 1;
  bool in_background = false;
  /// A new folder each step, of which one stays; else "last" again and again.
  bool has_new_names = false;
};

std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.n_processes << " processes, " << (way.in_background ? "background" : "sync")
             << (way.has_new_names ? ", new names" : ", last");
}

// All values of the checkpoint of a step are that step.
redco::Checkpoint checkpoint_of(int64_t step) {
  Tree::Dict params;
  for (const char* name : {"a", "b", "c", "d"}) params[name] = at::full({20}, double(step));
  Tree::Dict opt_state{{"m", at::full({20}, double(step))}};
  return {params, opt_state, Tree::Dict{{"step", step}}};
}

void save_on(const std::shared_ptr<const redco::Mesh>& mesh, const Folder& folder, int64_t step,
             const Way& way) {
  redco::SaveCheckpointOptions options{.max_shard_size = way.n_processes == 1 ? 200 : 1000,
                                       .in_background = way.in_background,
                                       .also = {folder / "min_loss"},
                                       .pointer = folder / "last_ckpt.txt"};
  std::string name = "last";
  if (way.has_new_names) {
    name = "step_" + std::to_string(step);
    options.keep_last_k = 1;
  }
  redco::CheckpointWriter writer(mesh);
  writer.save(folder / name, checkpoint_of(step), options);
  writer.wait();
}

// Several processes are threads of this one here.
void save(const Folder& folder, int64_t step, const Way& way) {
  auto body = [&](const std::shared_ptr<const redco::Mesh>& mesh) {
    save_on(mesh, folder, step, way);
  };
  if (way.n_processes == 1)
    body(one_process());
  else
    redco::testing::on_threads(way.n_processes, 1, body);
}

// Saves in processes of their own, with faults in one of them; returns how that one ended. The
// others go on for a moment without it: then a launcher ends them.
int save_in_processes(const Folder& folder, int64_t step, const Way& way, int64_t victim,
                      const Plan& faults) {
  std::string secret = redco::random_secret();
  int port_of_store[2];
  REQUIRE(pipe(port_of_store) == 0);
  std::map<int64_t, pid_t> others;
  pid_t faulty = 0;
  for (int64_t rank = 0; rank < way.n_processes; ++rank) {
    pid_t process = fork();
    (rank == victim ? faulty : others[rank]) = process;
    if (process != 0) continue;
    plan_faults(folder, rank == victim ? faults : Plan());
    std::string text = message_of([&] {
      redco::Processes place{.rank = rank,
                             .size = way.n_processes,
                             .local_rank = rank,
                             .local_size = way.n_processes,
                             .store_address = "127.0.0.1",
                             .secret = secret};
      REQUIRE(read(port_of_store[0], &place.store_port, sizeof(place.store_port)) > 0);
      auto mesh = redco::Mesh::make({.processes = place, .timeout = std::chrono::seconds(60)});
      save_on(mesh, folder, step, way);
    });
    _exit(text == "no error" ? 0 : 1);
  }
  // Now that there are all processes: they would have no more than the locks of its thread.
  auto store = redco::RunStore::open(secret);
  int64_t port = store->port();
  for (int64_t i = 0; i < way.n_processes; ++i)
    REQUIRE(write(port_of_store[1], &port, sizeof(port)) == sizeof(port));
  int faultys_end = 0, status = 0;
  REQUIRE(waitpid(faulty, &faultys_end, 0) == faulty);
  if (faultys_end != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (auto [rank, process] : others) kill(process, SIGKILL);
  }
  for (auto [rank, process] : others) {
    REQUIRE(waitpid(process, &status, 0) == process);
    if (faultys_end == 0) CHECK(status == 0);
  }
  for (int end : port_of_store) close(end);
  return faultys_end;
}

int64_t checked_step(const std::string& folder) {
  redco::Checkpoint loaded = redco::load_checkpoint(folder, one_process());
  int64_t step = loaded.info.at("step").as<int64_t>();
  redco::Checkpoint expected = checkpoint_of(step);
  check_equal(loaded.params, expected.params);
  check_equal(loaded.opt_state, expected.opt_state);
  return step;
}

/// Returns the step that the next start finds, or 0 if there is none yet. Every folder with a name
/// is a whole checkpoint, and the best one is not older than what the run goes on from.
int64_t step_in(const Folder& folder) {
  int64_t found = 0;
  std::string pointer = read_bytes(folder / "last_ckpt.txt");
  if (!pointer.empty()) found = checked_step(folder / pointer.substr(0, pointer.size() - 1));
  for (const auto& item : fs::directory_iterator(folder.path)) {
    std::string name = item.path().filename();
    if (!item.is_directory() || name[0] == '.') continue;
    int64_t step = checked_step(item.path());
    if (name == "min_loss") CHECK(step >= found);
  }
  return found;
}

std::set<std::string> names_after(const Way& way, int64_t step) {
  return {"last_ckpt.txt", "min_loss", way.has_new_names ? "step_" + std::to_string(step) : "last"};
}

void check_goes_on(const Folder& folder, const Way& way) {
  plan_faults(folder, {});
  redco::clean_checkpoints(folder.path);
  int64_t step = step_in(folder);
  save(folder, step + 1, way);
  CHECK(step_in(folder) == step + 1);
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(folder.path)) names.insert(item.path().filename());
  CHECK(names == names_after(way, step + 1));
}

const std::vector<Way> all_ways = {{1, false, false}, {1, true, false}, {4, false, false},
                                   {4, true, false},  {1, false, true}, {1, true, true},
                                   {4, false, true},  {4, true, true}};

// Kills the save of `step` at each call in turn, until it passes; returns what was found then.
// Where several threads save, at every fourth call, unless all are asked for.
std::set<int64_t> kill_sweep(const Way& way, const Plan& plan, bool has_earlier) {
  std::set<int64_t> found;
  for (std::string act : {"kill_before", "kill_after"}) {
    // After one call is before the next, where there is no other process.
    if (act == "kill_after" && way.n_processes == 1) continue;
    int stride = way.n_processes == 1 || runs_all() ? 1 : 4;
    for (int call = 0, status = SIGKILL; status == SIGKILL; call += stride) {
      CAPTURE(act);
      CAPTURE(call);
      Folder folder;
      plan_faults(folder, {});
      if (has_earlier) save(folder, 1, way);
      pid_t child = fork();
      if (child == 0) {
        Plan faults = plan;
        faults["CALL"] = std::to_string(call);
        faults["ACT"] = act;
        plan_faults(folder, faults);
        bool is_saved = message_of([&] { save(folder, 2, way); }) == "no error";
        _exit(is_saved ? 0 : 1);
      }
      REQUIRE(waitpid(child, &status, 0) == child);
      REQUIRE((status == 0 || status == SIGKILL));
      found.insert(step_in(folder));
      if (status == 0) CHECK(step_in(folder) == 2);
      check_goes_on(folder, way);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("killed at any call, a save leaves the earlier checkpoint or the new one") {
  for (const Way& way : all_ways) {
    CAPTURE(way);
    CHECK(kill_sweep(way, {}, true) == std::set<int64_t>{1, 2});
    CHECK(kill_sweep(way, {}, false) == std::set<int64_t>{0, 2});
  }
}

TEST_CASE("one process of four is killed at its calls, and the others are not") {
  for (Way way : {Way{4, false, false}, Way{4, true, true}})
    for (int64_t victim : {0, 1}) {  // the others do what number 1 does
      CAPTURE(way);
      CAPTURE(victim);
      std::set<int64_t> found;
      // Half of the calls each: all four died at each of them above.
      for (int call = way.in_background, status = SIGKILL; status == SIGKILL; call += 2) {
        CAPTURE(call);
        Folder folder;
        plan_faults(folder, {});
        save(folder, 1, way);
        Plan faults{{"CALL", std::to_string(call)}, {"ACT", "kill_before"}};
        status = save_in_processes(folder, 2, way, victim, faults);
        REQUIRE((status == 0 || status == SIGKILL));
        found.insert(step_in(folder));
        if (status == 0) CHECK(step_in(folder) == 2);
        check_goes_on(folder, way);
      }
      CHECK(found == std::set<int64_t>{1, 2});
    }
}

TEST_CASE("the same where two names cannot be exchanged") {
  for (const Way& way : {Way{1, false, false}, Way{4, true, true}}) {
    CAPTURE(way);
    CHECK(kill_sweep(way, {{"NO_EXCHANGE", "1"}}, true) == std::set<int64_t>{1, 2});
  }
}

TEST_CASE("a call that fails is told, and leaves the earlier checkpoint or the new one") {
  const std::map<std::string, std::string> reasons = {
      {"ENOSPC", "No space left"}, {"EIO", "Input/output error"}, {"EROFS", "Read-only"}};
  for (const Way& way : all_ways)
    for (const auto& [act, reason] : reasons)
      for (std::string lasts : {"", "-"}) {
        if (way.n_processes > 1 && act != "ENOSPC") continue;
        CAPTURE(way);
        CAPTURE(act);
        CAPTURE(lasts);
        for (int call = 0, n_calls = 1; call < n_calls; ++call) {
          CAPTURE(call);
          Folder folder;
          plan_faults(folder, {});
          save(folder, 1, way);
          plan_faults(folder, {{"CALL", std::to_string(call) + lasts}, {"ACT", act}});
          std::string text = message_of([&] { save(folder, 2, way); });
          n_calls = std::max(n_calls, int(count_faulty_files()));
          check_contains(text, reason);
          check_contains(text, folder.path);
          CHECK(step_in(folder) > 0);
          check_goes_on(folder, way);
        }
      }
}

TEST_CASE("short and interrupted calls are gone on with") {
  Way way{.n_processes = 1, .has_new_names = true};
  for (std::string kind : {"write", "fsync", "open"}) {
    CAPTURE(kind);
    for (int call = 0, n_calls = 1; call < n_calls; ++call) {
      CAPTURE(call);
      Folder folder;
      std::string act = kind == "write" && call % 2 == 0 ? "short" : "EINTR";
      plan_faults(folder, {{"CALL", std::to_string(call)}, {"ACT", act}, {"KIND", kind}});
      save(folder, 1, way);
      n_calls = int(count_faulty_files()) - 1;
      CHECK(step_in(folder) == 1);
    }
  }
}

TEST_CASE("nothing gets its name before it is safe, and nothing goes before that name is") {
  for (bool has_new_names : {false, true}) {
    Folder folder;
    Way way{.n_processes = 1, .has_new_names = has_new_names};
    save(folder, 1, way);
    plan_faults(folder, {{"LOG", "/dev/shm/redco-faults-" + std::to_string(getpid())}});
    const std::string log = std::getenv("FAULTY_FILES_LOG");
    save(folder, 2, way);
    std::istringstream lines(read_bytes(log));
    fs::remove(log);
    std::set<std::string> unsafe;  // files with writes, folders with names, that are not synced
    int n_files = 0, n_names = 0;
    for (std::string kind, path; lines >> kind >> path;) {
      CAPTURE(kind);
      CAPTURE(path);
      std::string parent = fs::path(path).parent_path();
      if (kind == "fsync") unsafe.erase(path), ++n_files;
      if (kind == "write") unsafe.insert(path);
      if (kind == "open" || kind == "link") unsafe.insert(parent);
      if (kind.starts_with("rename") && path.find("/.") == path.npos) {
        for (const std::string& each : unsafe) CHECK(each == folder.path);
        unsafe.insert(parent);
        ++n_names;
      }
      if (kind == "unlink") CHECK(unsafe.empty());
    }
    CHECK(n_files > 4);
    CHECK(n_names == 3);
    CHECK(unsafe.empty());
  }
}
