#pragma once

#include <redco/export.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace redco::io {

/// Calls `visit` on the lines of a metrics.jsonl that are kept if a run resumes at `step`: steps
/// before it (counted from 0), evaluations after at most `step` steps, and a script's own metrics
/// at `step`. `json` is null for lines before `step`, which are not parsed. Returns whether there
/// are others; an incomplete last line is one.
bool visit_kept_metrics(
    const std::string& path, int64_t step,
    const std::function<void(const std::string& line, const nlohmann::json& json)>& visit);

/// Removes from a metrics.jsonl what an earlier process logged after the checkpoint, with `step`
/// steps done, from which a run resumes. The file is replaced as a whole. Throws Error if it cannot
/// be written.
REDCO_API void remove_later_metrics(const std::string& path, int64_t step);

}  // namespace redco::io
