#include "alone.h"

#include "spmd_log.h"

#include <redco/error.h>

#include <atomic>

namespace redco::mesh {

namespace {

std::atomic<int> depth = 0;

}  // namespace

Alone::Alone() {
  if (depth++ == 0) SpmdLog::get().pause(true);
}

Alone::~Alone() {
  if (--depth == 0) SpmdLog::get().pause(false);
}

bool Alone::is_on() { return depth > 0; }

void Alone::refuse(const std::function<std::string()>& what) {
  require(
      !is_on(), what(),
      ": it needs all processes, but this one works alone, in a function given to "
      "`Deployer:alone`. Do it before or after, or use the Deployer that the function is given");
}

}  // namespace redco::mesh
