#pragma once

#include <redco/export.h>
#include <redco/group.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace redco {

/// Why a collective was called, and by which line of the script.
struct REDCO_API Move {
  enum Cause : uint8_t {
    other_cause,     ///< agreement among processes, and everything without a stated cause
    operator_cause,  ///< redistributes an operator's arguments to the placements its plan needs, or
                     ///< its results back
    without_rule,    ///< the same, for an operator that cannot run on parts
    within_operator,  ///< combines results that an operator computed on the parts, such as sums,
                      ///< or exchanges positions for heads
    request,          ///< `shard`, `redistribute` or `full`, called by a script or a Trainer
    parameters,       ///< gathers parameters that ZeRO splits
    gradients,        ///< reduces gradients
    checkpoint,       ///< gathers tensors to save them
    stage,            ///< sends tensors to other stages of a pipeline
  };
  /// The name used in Lua: "operator", "operator without rule", "within operator", "request", ...
  static const char* name(Cause cause);

  Cause cause = other_cause;
  std::string what;  ///< the operator, such as "aten::cumsum", or the function that was called
  std::string line;  ///< the script line, such as "train.lua:12", or empty
  bool is_backward = false;  ///< called by autograd; the line is that of the call to backward
  std::string group;         ///< the name of a mesh dimension, or "world"
  Group::Kind kind = Group::all_reduce_kind;

  /// Whether the arguments of an operator are gathered, or moved to other parts. Reductions on the
  /// way do not count.
  bool is_gather() const {
    return (cause == operator_cause || cause == without_rule) &&
           (kind == Group::all_gather_kind || kind == Group::all_to_all_kind);
  }
  auto operator<=>(const Move&) const = default;
};

struct Moved {
  int64_t calls = 0;        ///< of the operator or function
  int64_t collectives = 0;  ///< number of collectives in those calls
  int64_t bytes = 0;        ///< that this process sent
};

struct MoveCounters {
  /// All collectives by cause. The bytes of a group and kind add up to those that the group counts.
  std::map<Move, Moved> moves;
  int64_t gathered_bytes = 0;  ///< bytes of the moves that are gathers
};
/// The counters of this thread.
REDCO_API MoveCounters& move_counters();

/// While it exists, collectives of this thread are counted under this cause. Costs nothing if there
/// are none.
class REDCO_API Moving {
 public:
  /// `what` must outlive the object. A `request` inside another cause counts as the outer one.
  Moving(Move::Cause cause, std::string_view what);
  ~Moving();
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

  /// The last gather that was counted under it, in move_counters().moves; null: none was.
  const std::pair<const Move, Moved>* gathered() const { return gathered_; }

  /// The cause under which this thread counts collectives now.
  static Move::Cause cause_now();

 private:
  friend void count_move(const std::string&, Group::Kind, int64_t);
  Moving* outer_;
  Move::Cause cause_;
  std::string_view what_;
  const std::pair<const Move, Moved>* gathered_ = nullptr;
  uint32_t counted_ = 0;  // bit set of the groups and kinds for which this call is already counted
};

/// Counts a collective of a group in which this process sends `bytes`. Called by groups of real
/// processes.
REDCO_API void count_move(const std::string& group, Group::Kind kind, int64_t bytes);

}  // namespace redco
