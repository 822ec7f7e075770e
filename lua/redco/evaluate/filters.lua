--- Filters: what of a generated text counts as the answer. Names and options are the harness's.
local fail = require "redco.fail"
local native = require "redco.native"
local python_text = require "redco.evaluate.python_text"

-- Returns what the regular expression finds, or o.fallback.
local function regex(o)
  local expression = o.regex_pattern or "#### (\\-?[0-9\\.\\,]+)"
  local select_one, fallback = o.group_select or 0, o.fallback or "[invalid]"
  native.find_matches(expression, "")  -- an error before the model runs
  return function(text)
    local found = python_text.find_all(expression, text)
    local groups = found[select_one < 0 and #found + 1 + select_one or select_one + 1]
    if not groups then return fallback end
    if #groups == 1 then return python_text.strip(groups[1]) end
    for _, group in ipairs(groups) do
      if group ~= "" then return python_text.strip(group) end
    end
    return python_text.strip(fallback)
  end
end

-- Returns the most frequent text; among equally frequent ones, the first.
local function most_common(texts)
  local counts, best = {}, nil
  for _, text in ipairs(texts) do counts[text] = (counts[text] or 0) + 1 end
  for _, text in ipairs(texts) do
    if not best or counts[text] > counts[best] then best = text end
  end
  return best
end

-- Returns a filter of the list of a document's texts that changes each of them.
local function of_each(make)
  return function(o)
    local change = make(o)
    return function(texts)
      local changed = {}
      for i, text in ipairs(texts) do changed[i] = change(text) end
      return changed
    end
  end
end

-- By kind: the options, and a function of them that returns a filter of a document's texts.
local kinds = {
  lowercase = { {}, of_each(function() return native.lower_case end) },
  majority_vote = { {}, function()
    return function(texts) return { most_common(texts) } end
  end },
  map = { { mapping_dict = "table", default_value = "string" }, of_each(function(o)
    return function(text) return (o.mapping_dict or {})[text] or o.default_value or "" end
  end) },
  regex = { { regex_pattern = "string", group_select = "number", fallback = "string" },
    of_each(regex) },
  remove_whitespace = { {}, of_each(function() return python_text.strip end) },
  take_first = { {}, function()
    return function(texts) return { texts[1] } end
  end },
  take_first_k = { { k = "number" }, function(o)
    return function(texts)
      if not o.k or o.k < 1 or o.k > #texts then
        fail("take_first_k: k is %s, and a document has %d answers; `repeats` says how many",
          tostring(o.k), #texts)
      end
      return { unpack(texts, 1, o.k) }
    end
  end },
  uppercase = { {}, of_each(function()
    return function(text)
      return native.render_template("{{ text | upper }}", { text = text })
    end
  end) },
}

local function new_filter(where, row)
  local kind = type(row) == "table" and kinds[row["function"]]
  if not kind then
    local names = {}
    for name in pairs(kinds) do names[#names + 1] = name end
    table.sort(names)
    fail("%s: expected function = one of %s, got %s", where, table.concat(names, ", "),
      native.describe(type(row) == "table" and row["function"] or row))
  end
  for name, value in pairs(row) do
    if name ~= "function" and type(value) ~= kind[1][name] then
      fail("%s: %s: %s", where, name, kind[1][name]
        and ("expected a %s, got %s"):format(kind[1][name], native.describe(value))
        or ("%s has no such option"):format(row["function"]))
    end
  end
  local ok, filter = pcall(kind[2], row)
  if not ok then fail("%s: %s", where, tostring(filter)) end
  return filter
end

--- Returns the pipelines of a task, a list of { name, apply }: apply(texts) returns what is left of
--- the list of a document's answers, of which metrics read the first.
return function(where, list)
  if not list then return { { name = "none", apply = function(texts) return { texts[1] } end } } end
  local pipelines = {}
  for i, row in ipairs(list) do
    local place = ("%s: filter_list: entry %d"):format(where, i)
    if type(row) ~= "table" or type(row.name) ~= "string" or type(row.filter) ~= "table" then
      fail("%s: expected { name = ..., filter = { ... } }", place)
    end
    local filters = {}
    for j, each in ipairs(row.filter) do
      filters[j] = new_filter(("%s: filter %d"):format(place, j), each)
    end
    pipelines[i] = { name = row.name, apply = function(texts)
      for _, filter in ipairs(filters) do texts = filter(texts) end
      return texts
    end }
  end
  if #pipelines == 0 then fail("%s: filter_list is empty", where) end
  return pipelines
end
