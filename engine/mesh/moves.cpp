// Counts collectives by cause.

#include <redco/moves.h>

#include <redco/mesh.h>

#include <torch/csrc/autograd/function.h>

#include <utility>

namespace redco {

namespace {

thread_local Moving* current = nullptr;

// The position of a mesh dimension; of `world`, their number.
int index_of(const std::string& group) {
  int i = 0;
  while (i < Mesh::n_dims && group != Mesh::facts[size_t(i)].name) ++i;
  return i;
}
static_assert(Group::n_kinds * (Mesh::n_dims + 1) <= 32, "one bit for each kind and group");

}  // namespace

const char* Move::name(Cause cause) {
  static constexpr const char* names[] = {"other",           "operator",   "operator without rule",
                                          "within operator", "request",    "parameters",
                                          "gradients",       "checkpoint", "stage"};
  return names[cause];
}

Moving::Moving(Move::Cause cause, std::string_view what)
    : outer_(std::exchange(current, this)), cause_(cause), what_(what) {
  if (cause == Move::request && outer_) {
    cause_ = outer_->cause_;
    what_ = outer_->what_;
  }
}

Moving::~Moving() { current = outer_; }

Move::Cause Moving::cause_now() { return current ? current->cause_ : Move::other_cause; }

MoveCounters& move_counters() {
  thread_local MoveCounters counters;
  return counters;
}

void count_move(const std::string& group, Group::Kind kind, int64_t bytes) {
  Move move;
  move.line = call_site();
  move.is_backward = torch::autograd::get_current_node() != nullptr;
  move.group = group;
  move.kind = kind;
  if (current) {
    move.cause = current->cause_;
    move.what = current->what_;
  }
  MoveCounters& counters = move_counters();
  auto entry = counters.moves.try_emplace(std::move(move)).first;
  Moved& moved = entry->second;
  const int bit = kind + Group::n_kinds * index_of(group);
  if (!current || !(current->counted_ >> bit & 1)) ++moved.calls;
  if (current) current->counted_ |= uint32_t{1} << bit;
  ++moved.collectives;
  moved.bytes += bytes;
  if (!entry->first.is_gather()) return;
  counters.gathered_bytes += bytes;
  current->gathered_ = &*entry;
}

}  // namespace redco
