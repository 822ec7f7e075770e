--- The report of a check: a text, or a JSON document.
local native = require "redco.native"
local shown = require "redco.check.shown"

local report = {}

local function plural(n, word) return ("%d %s%s"):format(n, word, n == 1 and "" or "s") end

local function counted(finding)
  if finding.of then return (": %d of %d"):format(finding.count, finding.of) end
  return finding.count > 1 and ": " .. finding.count or ""
end

local function finding_text(finding)
  local where = finding.where and (" (%s)"):format(finding.where) or ""
  local text = ("%-8s %s: %s%s%s\n%s"):format(finding.level, finding.name, finding.title,
    counted(finding), where, finding.advice)
  return text:gsub("\n", "\n         ") .. "\n"
end

-- Lists the skipped checks by reason.
local function skipped_text(skipped)
  local by_reason, reasons = {}, {}
  for _, each in ipairs(skipped) do
    if not by_reason[each.reason] then
      by_reason[each.reason] = {}
      reasons[#reasons + 1] = each.reason
    end
    table.insert(by_reason[each.reason], each.name)
  end
  local lines = {}
  for i, reason in ipairs(reasons) do
    lines[i] = ("not made, %s: %s\n"):format(reason, table.concat(by_reason[reason], ", "))
  end
  return table.concat(lines)
end

--- Returns "2 errors, 1 warning".
function report.summary(result)
  return plural(result.n_errors, "error") .. ", " .. plural(result.n_warnings, "warning")
end

-- Which training was looked at.
local function training_text(training)
  if not training then return "" end
  local n = training.n_trainers - 1
  return ("checked: the first training, at %s%s\n"):format(training.line or "an unknown line",
    n > 0 and (", not those of %s"):format(plural(n, "further Trainer")) or "")
end

--- Returns the report of the script `name` as a text.
function report.text(name, result)
  local parts = {}
  local function add(...) parts[#parts + 1] = string.format(...) end
  if result.examples then
    add("%s: %d of %s\n", name, result.examples.checked,
      plural(result.examples.count, "training example"))
  end
  parts[#parts + 1] = training_text(result.training)
  if #result.shown > 0 then
    add("\nexamples as the model sees them%s:\n",
      result.has_marks and ", trained tokens between « and »" or "")
    for _, each in ipairs(result.shown) do
      add("%7d  %s\n", each.example, (shown.shortened(each.text)))
    end
    add "\n"
  end
  for _, finding in ipairs(result.findings) do parts[#parts + 1] = finding_text(finding) end
  parts[#parts + 1] = skipped_text(result.skipped)
  add("%s made: %s\n", plural(#result.made, "check"), report.summary(result))
  return table.concat(parts)
end

--- Returns the report as JSON.
function report.json(name, result)
  local all = { schema = 1, script = name }
  for key, value in pairs(result) do all[key] = value end
  for _, key in ipairs { "findings", "shown", "made", "skipped" } do
    if #all[key] == 0 then all[key] = setmetatable({}, { __keys = true }) end  -- an empty list
  end
  return native.json_encode("check", all, 2)
end

return report
