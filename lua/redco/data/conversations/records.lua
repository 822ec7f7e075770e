--- Records of conversations: where they are read from, and which of them become examples.
local check_integer = require "redco.check_integer"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local parquet = require "redco.data.parquet"
local readers = require "redco.data.readers"
local without_position = require "redco.without_position"

local records = {}

local function json_records(path)
  local list = readers.json(path)
  if type(list) ~= "table" or #list == 0 then
    fail("%s: expected a list of records, got %s", path, native.describe(list))
  end
  return dataset.new(#list, function(i) return list[i] end, nil,
    function(i) return ("%s: record %d"):format(path, i) end)
end

local openers = { jsonl = readers.jsonl, json = json_records, parquet = parquet }

local function open_file(where, path)
  local ending = path:gsub("%.gz$", ""):match "%.(%w+)$" or ""
  local open = openers[ending:lower()]
    or fail("%s: %s: expected a file .jsonl, .json or .parquet", where, path)
  return open(path)
end

--- Returns a list or a data set of records from a path, a list of paths, or such a list.
function records.open(where, source)
  if type(source) == "string" then return open_file(where, source) end
  if type(source) == "table" and type(source[1]) == "string" then
    local sets = {}
    for i, path in ipairs(source) do sets[i] = open_file(where, path) end
    return dataset.concat(sets)
  end
  if type(source) == "table" or type(source) == "userdata" then return source end
  fail("%s: expected a path, a list of paths, a list of records or a data set, got %s", where,
    native.describe(source))
end

local function check_found(where, found, n_kept, n, o)
  if found.invalid > 0 and not o.skip_invalid then
    local more = found.invalid - #found.reasons
    fail("%s: %s%s\nskip_invalid = true leaves out such records", where,
      table.concat(found.reasons, "\n"), more > 0 and ("\n... and %d more"):format(more) or "")
  end
  if n_kept > 0 then return end
  if n == 0 then fail("%s: there are no records", where) end
  local limit = o.max_length and ("%d are longer than max_length = %s, "):format(found.too_long,
    o.max_length) or ""
  fail("%s: none of %d records can be used: %s%s%d are invalid%s", where, n, limit,
    found.same and ("%d have two equal answers, "):format(found.same) or "", found.invalid,
    found.reasons[1] and ", such as " .. found.reasons[1] or "")
end

--- Calls `encode(record)` for each record. For one that is left out it returns nil and the name of
--- a count, "too_long" by default; for one that is wrong it raises an error. Calls `add(...)` with
--- the other results. Returns the numbers of the records that became examples, and the counts with
--- `invalid`. Raises an error if no example is left, or if a record is wrong without
--- o.skip_invalid.
function records.encode(where, list, o, encode, add)
  local kept, found = {}, { too_long = 0, invalid = 0, reasons = {} }
  local function note(i, ok, first, ...)
    if not ok then
      if tostring(first):find "interrupted$" then error(first, 0) end
      found.invalid = found.invalid + 1
      if #found.reasons < 5 then
        table.insert(found.reasons, dataset.place_of(list, i) .. ": " .. without_position(first))
      end
    elseif first == nil then
      local count = (...) or "too_long"
      found[count] = (found[count] or 0) + 1
    else
      kept[#kept + 1] = i
      add(first, ...)
    end
  end
  for i = 1, #list do note(i, pcall(encode, list[i])) end
  check_found(where, found, #kept, #list, o)
  return kept, found
end

--- Raises an error for wrong options that conversations and preferences share. `truncations` has
--- the names that the option truncation may have.
function records.check_options(where, o, truncations)
  if type(o.tokenizer) ~= "userdata" then
    fail("%s: tokenizer: expected a Tokenizer, got %s", where, native.describe(o.tokenizer))
  end
  if not o.tokenizer.chat_template then
    fail("%s: the tokenizer has no chat_template; set tokenizer.chat_template", where)
  end
  local names = {}
  for _, name in ipairs(truncations) do names[name] = true end
  if not names[o.truncation] then
    fail("%s: truncation: expected \"%s\" or \"%s\", got %s", where,
      table.concat(truncations, "\", \"", 1, #truncations - 1), truncations[#truncations],
      native.describe(o.truncation))
  end
  if o.max_length ~= nil then check_integer(where, "max_length", o.max_length, 2) end
  for _, name in ipairs { "roles", "variables" } do
    if type(o[name]) ~= "table" then
      fail("%s: %s: expected a table, got %s", where, name, native.describe(o[name]))
    end
  end
end

--- Returns the counts that are not 0 as ends of a line of the log: "; 3 truncated".
function records.counts(statistics)
  local parts = {}
  for _, row in ipairs { { "truncated", "truncated" }, { "too_long", "too long and left out" },
    { "same", "with two equal answers and left out" }, { "invalid", "invalid and left out" } } do
    local count = statistics[row[1]] or 0
    if count > 0 then parts[#parts + 1] = ("; %d %s"):format(count, row[2]) end
  end
  return table.concat(parts)
end

return records
