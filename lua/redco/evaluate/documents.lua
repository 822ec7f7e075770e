--- The documents of an evaluation: the rows of a file.
local data = require "redco.data"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"

-- Returns numbers in place of the texts of columns in which each value is a number.
local function with_numbers(set)
  local rows, is_text = set:tolist(), {}
  for _, row in ipairs(rows) do
    for name, value in pairs(row) do
      if not value:find "^%-?%d+%.?%d*$" then is_text[name] = true end
    end
  end
  return set:map(function(row)
    local changed = {}
    for name, value in pairs(row) do changed[name] = is_text[name] and value or tonumber(value) end
    return changed
  end)
end

local function json_rows(path)
  local list = data.json(path)
  return dataset.new(#list, function(i) return list[i] end, nil,
    function(i) return ("%s: record %d"):format(path, i) end)
end

local readers = {
  csv = function(path) return with_numbers(data.csv(path)) end,
  json = json_rows,
  jsonl = data.jsonl,
  parquet = data.parquet,
  tsv = function(path) return with_numbers(data.csv(path)) end,
}

local function open(where, path)
  local ending = path:gsub("%.gz$", ""):match "%.(%w+)$" or ""
  local read = readers[ending:lower()]
    or fail("%s: expected a file .jsonl, .json, .csv, .tsv or .parquet, got %s", where, path)
  if not native.file_exists(path) then fail("%s: there is no file %s", where, path) end
  return read(path)
end

--- Reads the documents of `source`, a path, a list of documents or a data set. Returns { list,
--- names, place }: all documents, the set of their names, and place(i), where document i is from.
--- `change(document)`, or nil, returns what takes its place.
return function(where, source, change)
  local set = type(source) == "string" and open(where, source) or source
  if type(set) ~= "table" and type(set) ~= "userdata" then
    fail("%s: expected a path or a list of documents, got %s", where, native.describe(source))
  end
  local found = { list = {}, names = {}, place = function(i) return dataset.place_of(set, i) end }
  for i = 1, #set do
    local document = set[i]
    if type(document) ~= "table" or document[1] ~= nil then
      fail("%s: expected an object with names, got %s", found.place(i), native.describe(document))
    end
    if change then
      local ok, changed = pcall(change, document)
      if not ok then fail("%s: process_doc: %s", found.place(i), tostring(changed)) end
      if type(changed) ~= "table" then
        fail("%s: process_doc returned %s, expected a table", found.place(i),
          native.describe(changed))
      end
      document = changed
    end
    for name in pairs(document) do found.names[name] = true end
    found.list[i] = document
  end
  if #found.list == 0 then
    fail("%s: there are no documents%s", where,
      type(source) == "string" and " in " .. source or "")
  end
  return found
end
