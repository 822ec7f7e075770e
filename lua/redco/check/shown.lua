--- Examples as a reader sees them: texts with the trained tokens marked, or the tensors.
local decoded = require "redco.check.decoded"
local torch = require "redco.torch"
local tree = require "redco.tree"

local shown = {}

local open_mark, close_mark = "«", "»"
local most_bytes = 600  -- of a text that people read

-- Returns the text of tokens; those for which is_trained[t] are between marks.
local function marked(tokenizer, ids, is_trained)
  local parts, first = {}, 1
  for t = 1, #ids do
    if t == #ids or is_trained[t + 1] ~= is_trained[t] then
      local run = {}
      for i = first, t do run[#run + 1] = ids[i] end
      local text = decoded(tokenizer, run)
      parts[#parts + 1] = is_trained[t] and open_mark .. text .. close_mark or text
      first = t + 1
    end
  end
  return table.concat(parts)
end

-- A label trains the next token; if labels are not next tokens, the token at its own position.
local function of_row(s, row)
  local is_trained, labels = { false }, row.labels or row.given
  local distance = row.labels and 1 or 0
  for t = 1, #row.ids do
    is_trained[t + distance] = labels ~= nil and labels[t] ~= -100
  end
  is_trained[#row.ids + 1] = nil
  local text = marked(s.tokenizer, row.ids, is_trained)
  -- The label of the last token is not an input.
  local last = row.labels and row.labels[#row.ids]
  if last and last ~= -100 and not row.is_packed then
    text = text .. open_mark .. decoded(s.tokenizer, { last }) .. close_mark
  end
  return text
end

local function shape_of(x)
  return ("%s [%s]"):format(x.dtype, table.concat(x.shape, ", "))
end

local function number(x) return ("%.4g"):format(x) end

-- A tensor's row: its numbers if they are few, else shape and range.
local function of_tensor(x)
  if x:numel() == 0 or x.dtype:find "complex" then return shape_of(x) end
  local y = x:double()
  if y:numel() == 1 then return number(y:item()) end
  return ("%s from %s to %s"):format(shape_of(x), number(y:min():item()), number(y:max():item()))
end

local function of_tensors(each, i)
  local parts, names, leaves = {}, tree.paths(each.batch), tree.leaves(each.batch)
  for k, name in ipairs(names) do
    local x = leaves[k]
    if torch.is_tensor(x) then
      local is_row = x:dim() > 0 and x:size(0) == #each.examples
      parts[#parts + 1] = name .. ": " .. of_tensor(is_row and x[i - 1] or x)
    end
  end
  return table.concat(parts, "; ")
end

-- The labels of an example, if there is one for each.
local function label_of(s, row)
  local each = s.batches[row.batch]
  local labels = each.batch.labels
  if not torch.is_tensor(labels) or labels:dim() ~= 1 then return "" end
  for i, example in ipairs(each.examples) do
    if example == row.example and i <= labels:size(0) then
      return " -> " .. number(labels[i - 1]:double():item())
    end
  end
  return ""
end

-- Returns which answer a row has, of the batches of redco.preference.collate.
local function answer_of(s, row)
  local batch = s.batches[row.batch].batch
  local labels = batch.labels
  if not torch.is_tensor(labels) or labels:dim() ~= 3 or labels:size(1) ~= 2 then return "" end
  local names = batch.desirable and { "completion", "kl_completion" } or { "chosen", "rejected" }
  return names[row.place] .. ": "
end

local function texts_of_rows(s, n)
  local list = {}
  for _, row in ipairs(s.rows) do
    if #list == n then break end
    list[#list + 1] = { example = row.example,
      text = answer_of(s, row) .. of_row(s, row) .. label_of(s, row) }
  end
  return list
end

-- Adds the outputs of an encoder-decoder.
local function add_written(s, list, n)
  if not s.labelled or not s.labelled[1].is_written then return end
  for i = 1, math.min(n, #s.labelled) do
    local row = s.labelled[i]
    local text = open_mark .. decoded(s.tokenizer, row.output) .. close_mark
    list[i] = list[i] or { example = row.example, text = "" }
    list[i].text = (list[i].text .. " -> " .. text):gsub("^ ", "")
  end
end

local function tensors_of(s, n)
  local list = {}
  for _, each in ipairs(s.batches) do
    for i, example in ipairs(each.examples) do
      if #list == n then return list end
      list[#list + 1] = { example = example, text = of_tensors(each, i) }
    end
  end
  return list
end

--- Returns the first n examples of the batches: a list of {example, text}.
function shown.examples(s, n)
  if not s.batches or n == 0 then return {} end
  local list = s.rows and s.tokenizer and texts_of_rows(s, n) or {}
  if s.tokenizer then add_written(s, list, n) end
  return #list > 0 and list or tensors_of(s, n)
end

--- Whether the examples have marks.
function shown.has_marks(s)
  if not s.tokenizer then return false end
  return s.labelled ~= nil or s.rows ~= nil and s.rows[1].given ~= nil
end

--- Returns a text on one line, its middle left out if it is long.
function shown.shortened(text)
  text = text:gsub("\n", "\\n")
  if #text <= most_bytes then return text end
  local function is_inside(i) return text:byte(i) >= 128 and text:byte(i) < 192 end
  local first, last = most_bytes / 2, #text - most_bytes / 2
  while is_inside(first + 1) do first = first - 1 end
  while is_inside(last) do last = last + 1 end
  return text:sub(1, first) .. " ... " .. text:sub(last)
end

return shown
