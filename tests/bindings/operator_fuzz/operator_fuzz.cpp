// Calls operators from Lua with wild arguments, each tensor between two pages that nobody may
// touch.
//
//   operator_fuzz CALLS_FOLDER [--seed N] [--count N] [--restricted] [--operator NAME] [--call
//   TEXT]
//
// What a kernel reads or writes outside of a tensor ends the process that made the call: the call
// is told, and the next process goes on behind it. The status is 1 if there was one. The n-th call
// depends on the seed and n alone.
#include <redco/error.h>
#include <redco/script_engine.h>

#include "guarded_allocator.h"

#include <ATen/Parallel.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

namespace {

using redco::ScriptEngine;

// What the process that makes the calls leaves behind.
struct Progress {
  int64_t n_done;
  int64_t n_succeeded;
  char call[16384];
};

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw redco::Error("cannot read " + path);
  return text.str();
}

struct Options {
  std::string folder, only, call;
  int64_t seed = 1, count = 1000;
  bool restricted = false, verbose = false;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (word == "--seed")
      options.seed = std::stoll(value());
    else if (word == "--count")
      options.count = std::stoll(value());
    else if (word == "--restricted")
      options.restricted = true;
    else if (word == "--verbose")
      options.verbose = true;
    else if (word == "--operator")
      options.only = value();
    else if (word == "--call")
      options.call = value();
    else
      options.folder = word;
  }
  return options;
}

constexpr long seconds_for_a_call = 10;

// Of the processor's time, so that a busy machine changes nothing; 0: no limit.
void limit_time(long seconds) {
  itimerval limit{{0, 0}, {seconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
}

class Fuzz {
 public:
  explicit Fuzz(const Options& options)
      : options_(options),
        maker_({.strict = false}),
        target_({.strict = false, .restricted = options.restricted}) {
    maker_.run_string(text_of_file(options.folder + "/calls.lua"), "calls.lua");
    target_.run_string(text_of_file(options.folder + "/prepare.lua"), "prepare.lua");
    maker_.call("start", {text_of_file(options.folder + "/calls.txt")});
    if (options.restricted) target_.set_step_limit(20'000'000);
    progress_ = static_cast<Progress*>(
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }

  int run() {
    while (progress_->n_done < options_.count) {
      std::fflush(stdout);
      pid_t child = fork();
      if (child == 0) {
        make_calls();
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      tell(status);
      ++progress_->n_done;
    }
    std::printf(
        "%lld calls from seed %lld, of which %lld raised no error; %zu operators crashed, in %d "
        "calls\n",
        static_cast<long long>(options_.count), static_cast<long long>(options_.seed),
        static_cast<long long>(progress_->n_succeeded), crashes_.size(), n_crashes_);
    return crashes_.empty() ? 0 : 1;
  }

 private:
  void make_calls() {
    std::signal(SIGPROF, SIG_DFL);
    while (progress_->n_done < options_.count) {
      int64_t seed = options_.seed + progress_->n_done;
      std::string call = options_.call;
      if (call.empty()) {
        std::vector<redco::Tree> arguments{seed};
        if (!options_.only.empty()) arguments.emplace_back(options_.only);
        call = maker_.call("next_call", arguments).at(0).as<std::string>();
      }
      std::snprintf(progress_->call, sizeof progress_->call, "%s", call.c_str());
      limit_time(seconds_for_a_call);
      bool gradients = seed % 2 == 0;
      std::string why;
      try {
        target_.run_string("with_gradients = " + std::string(gradients ? "true" : "false") +
                           " ok, why = make(function() return require('redco.torch')." + call +
                           " end)");
        if (target_.get_global("ok").as<bool>()) ++progress_->n_succeeded;
        if (options_.verbose) why = target_.get_global("why").as<std::string>();
      } catch (const redco::Error& error) {
        why = error.what();
      }
      if (options_.verbose) std::printf("%s\n    %s\n", call.c_str(), why.substr(0, 200).c_str());
      limit_time(0);
      ++progress_->n_done;
    }
  }

  void tell(int status) {
    std::string call = progress_->call;
    std::string name = call.substr(0, call.find('('));
    const char* how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit";
    ++n_crashes_;
    if (crashes_[name]++ < 2)
      std::printf("%s: seed %lld: %s\n", how,
                  static_cast<long long>(options_.seed + progress_->n_done), call.c_str());
  }

  Options options_;
  ScriptEngine maker_, target_;
  Progress* progress_;
  std::map<std::string, int> crashes_;
  int n_crashes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    redco::testing::guard_allocations();  // what engines put before it stays before it
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    return Fuzz(read_options(argc, argv)).run();
  } catch (const std::exception& error) {
    std::cerr << "operator_fuzz: " << error.what() << '\n';
    return 2;
  }
}
