#pragma once

#include <redco/export.h>
#include <redco/group.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace redco {

/// What collectives are called for, and by which line of the script.
struct REDCO_API Move {
  enum Cause : uint8_t {
    other_cause,      ///< agreement among processes, and whatever else names no cause
    operator_cause,   ///< brings an operator's arguments to where its plan wants them, or results
                      ///< back
    without_rule,     ///< the same, for an operator that cannot run on parts at all
    within_operator,  ///< joins what an operator has computed of the parts, such as sums
    request,          ///< `shard`, `redistribute` or `full`, called by a script or a Trainer
    parameters,       ///< parameters that the dp ranks share (zero) are made whole
    gradients,        ///< gradients are reduced
    checkpoint,       ///< what is saved is made whole
  };
  /// In Lua: "operator", "operator without rule", "within operator", "request", ...
  static const char* name(Cause cause);

  Cause cause = other_cause;
  std::string what;          ///< the operator, "aten::cumsum", or the function that was called
  std::string line;          ///< the script's, "train.lua:12", or empty
  bool is_backward = false;  ///< called by autograd: the line is that of backward
  std::string group;         ///< "dp", "mp" or "world"
  Group::Kind kind = Group::all_reduce_kind;

  /// Whether an operator has arguments brought from parts to the whole, or to other parts. Sums
  /// that are made on the way do not count.
  bool is_gather() const {
    return (cause == operator_cause || cause == without_rule) &&
           (kind == Group::all_gather_kind || kind == Group::all_to_all_kind);
  }
  auto operator<=>(const Move&) const = default;
};

struct Moved {
  int64_t calls = 0;        ///< of the operator or function
  int64_t collectives = 0;  ///< that those called
  int64_t bytes = 0;        ///< that this process sent
};

struct MoveCounters {
  /// Every collective, by what it was for: the bytes of a group and kind add up to those that the
  /// group counts. Operators that are only watched to decide a layout send nothing.
  std::map<Move, Moved> moves;
  int64_t gathered_bytes = 0;  ///< of the moves that are gathers
};
/// Of this thread.
REDCO_API MoveCounters& move_counters();

/// While it lives, collectives of this thread are for this. Costs nothing where there are none.
class REDCO_API Moving {
 public:
  /// `what` must live as long. A `request` within another cause counts as that one.
  Moving(Move::Cause cause, std::string_view what, bool warns = false);
  ~Moving();
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

 private:
  friend void count_move(const std::string&, Group::Kind, int64_t);
  Moving* outer_;
  Move::Cause cause_;
  std::string_view what_;
  bool warns_;  // of many bytes
  uint16_t counted_ = 0;  // the groups and kinds, by bit, in which it is a call already
};

/// What to do about an operator, "aten::cumsum", whose arguments had to be gathered. Code in it
/// stands in backquotes.
REDCO_API std::string advice(const std::string& op);

/// A collective of a group starts, in which this process sends so much: called by every group.
REDCO_API void count_move(const std::string& group, Group::Kind kind, int64_t bytes);

}  // namespace redco
