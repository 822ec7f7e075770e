--- Packs token sequences into rows of equal length.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local function is_example(sequence)
  return type(sequence) == "table" and sequence.input_ids ~= nil
end

local function ids_of(sequence)
  return is_example(sequence) and sequence.input_ids or sequence
end

local function length_of(sequence)
  local ids = ids_of(sequence)
  if torch.is_tensor(ids) then return ids:size(0) end
  if type(ids) == "table" then return #ids end
  fail("pack: expected sequences of tokens, as lists, tensors or {input_ids, labels}; got %s",
    native.describe(ids))
end

local function to_tensor(ids)
  return torch.is_tensor(ids) and ids:long() or torch.tensor(ids, { dtype = "int64" })
end

--- Returns the tokens of a sequence and the labels that it has, or nil.
local function tokens_and_own_labels(sequence)
  local ids = to_tensor(ids_of(sequence))
  if not is_example(sequence) or not sequence.labels then return ids end
  local labels = to_tensor(sequence.labels)
  if labels:size(0) ~= ids:size(0) then
    fail("pack: a sequence has %d input_ids and %d labels", ids:size(0), labels:size(0))
  end
  return ids, labels
end

--- Returns the tokens of a sequence and their labels. The default label is the next token.
local function tokens_and_labels(sequence)
  local ids, labels = tokens_and_own_labels(sequence)
  if labels then return ids, labels end
  return ids, torch.cat { ids:narrow(0, 1, ids:size(0) - 1), torch.full({ 1 }, -100) }
end

--- Cuts the sequences into pieces of at most seq_len tokens. The longest come first; pieces of
--- equal length keep the order of the sequences. A piece is `length` tokens of sequence number
--- `index`, starting at token `from`, counted from 0.
local function pieces_by_length(sequences, seq_len)
  local by_length = {}
  for i = 1, #sequences do
    local length = length_of(sequences[i])
    for from = 0, length - 1, seq_len do
      local n = math.min(seq_len, length - from)
      by_length[n] = by_length[n] or {}
      table.insert(by_length[n], { index = i, from = from, length = n })
    end
  end
  local pieces = {}
  for n = seq_len, 1, -1 do
    for _, piece in ipairs(by_length[n] or {}) do pieces[#pieces + 1] = piece end
  end
  return pieces
end

--- A multiset of the numbers 0 to `limit`, with a search for the least one from a given number on.
local function new_bag(limit)
  local n_leaves = 1
  while n_leaves <= limit do n_leaves = n_leaves * 2 end
  local counts = {}  -- a binary tree: node i has the nodes 2 i and 2 i + 1 below it
  for i = 1, 2 * n_leaves - 1 do counts[i] = 0 end
  local bag = {}

  function bag.add(number, count)
    local i = n_leaves + number
    while i >= 1 do
      counts[i] = counts[i] + count
      i = math.floor(i / 2)
    end
  end

  function bag.least_from(number)
    local i = n_leaves + number
    while counts[i] == 0 do
      while i % 2 == 1 do i = math.floor(i / 2) end  -- up, while there is nothing on the right
      if i == 0 then return nil end
      i = i + 1
    end
    while i < n_leaves do i = counts[2 * i] > 0 and 2 * i or 2 * i + 1 end
    return i - n_leaves
  end

  return bag
end

--- Returns a list of pieces for each row. Each piece goes into the row with the least room left.
local function best_fit(pieces, seq_len)
  local rows, with_room, rooms = {}, {}, new_bag(seq_len)
  local function put(row, room)
    if room == 0 then return end
    with_room[room] = with_room[room] or {}
    table.insert(with_room[room], row)
    rooms.add(room, 1)
  end
  for _, piece in ipairs(pieces) do
    local room = rooms.least_from(piece.length)
    local row
    if room then
      row = table.remove(with_room[room])
      rooms.add(room, -1)
    else
      row, room = {}, seq_len
      rows[#rows + 1] = row
    end
    row[#row + 1] = piece
    put(row, room - piece.length)
  end
  return rows
end

--- Returns integers as a tensor: 8 bytes each, and not copied to workers.
local function integers(list) return torch.tensor(list, { dtype = "int64" }) end

local function best_fit_rows(sequences, o)
  local pieces, ends = {}, {}
  for i, row in ipairs(best_fit(pieces_by_length(sequences, o.seq_len), o.seq_len)) do
    for _, piece in ipairs(row) do
      pieces[#pieces + 1] = { piece.index, piece.from, piece.length }
    end
    ends[i] = #pieces
  end
  pieces, ends = integers(pieces), integers(ends)
  return dataset.new(ends:size(0), function(i)
    local input_ids, labels, positions, segments, room = {}, {}, {}, {}, o.seq_len
    local first = i > 1 and ends[i - 2]:item() or 0
    for n, piece in ipairs(pieces:narrow(0, first, ends[i - 1]:item() - first):tolist()) do
      local index, from, length = unpack(piece)
      local ids, targets = tokens_and_labels(sequences[index])
      input_ids[n] = ids:narrow(0, from, length)
      labels[n] = targets:narrow(0, from, length)
      positions[n] = torch.arange(length)
      segments[n] = torch.full({ length }, n)
      room = room - length
    end
    local function row(parts, padding)
      parts[#parts + 1] = torch.full({ room }, padding)
      return torch.cat(parts):long()
    end
    return { input_ids = row(input_ids, o.pad_token_id), labels = row(labels, -100),
      position_ids = row(positions, 0), segment_ids = row(segments, 0) }
  end)
end

local function wrapped_rows(sequences, o)
  local ends, total = {}, 0
  for i = 1, #sequences do
    total = total + length_of(sequences[i])
    ends[i] = total
  end
  ends = integers(ends)
  return dataset.new(math.max(0, math.floor((total - 1) / o.seq_len)), function(i)
    local at, parts, missing = (i - 1) * o.seq_len, {}, o.seq_len + 1
    local own = {}  -- {position in the row, labels} of the sequences that have labels
    local index = torch.searchsorted(ends, at, { right = true }):item()
    while missing > 0 do
      local ids, labels = tokens_and_own_labels(sequences[index + 1])
      local from = at - (index > 0 and ends[index - 1]:item() or 0)
      local n = math.min(missing, ids:size(0) - from)
      parts[#parts + 1] = ids:narrow(0, from, n)
      local first = o.seq_len + 1 - missing
      local n_labels = math.min(n, o.seq_len - first)
      if labels and n_labels > 0 then
        own[#own + 1] = { first, labels:narrow(0, from, n_labels) }
      end
      at, missing, index = at + n, missing - n, index + 1
    end
    local tokens = torch.cat(parts)
    local targets = tokens:narrow(0, 1, o.seq_len)
    if #own > 0 then targets = targets:clone() end
    for _, part in ipairs(own) do
      local first, labels = unpack(part)
      targets:narrow(0, first, labels:size(0)):copy_(labels)
    end
    return { input_ids = tokens:narrow(0, 0, o.seq_len), labels = targets }
  end)
end

local strategies = { bfd = best_fit_rows, wrapped = wrapped_rows }

local options = arguments("pack", { strategy = "bfd", pad_token_id = 0 }, { "seq_len" })

return registry.define("redco.data.pack", [[
pack(sequences, {seq_len, strategy = "bfd", pad_token_id = 0}) -> Dataset
Packs token sequences of any length into rows of seq_len tokens. `sequences` is a list or a data
set. Each sequence is a list or a tensor of tokens, or {input_ids, labels} with one label for each
token, the token to predict after it (-100: none). The default label is the next token. `pack` reads
the lengths of all sequences at once, and the tokens when a row is accessed.

strategy = "bfd" (best fit decreasing) keeps each sequence whole within one row and fills the row
with padding. It cuts a sequence longer than a row into pieces. A row has `input_ids`, `labels`,
`position_ids`, which start at 0 in each sequence, and `segment_ids`: 1 for the first sequence of a
row, 2 for the second, 0 for padding. With these, each token of a decoder or an encoder attends only
to its own sequence.

strategy = "wrapped" concatenates the sequences and cuts them anywhere, without padding. A row has
only `input_ids` and `labels`. The incomplete row at the end is dropped.]],
function(sequences, given)
  local o = options(given)
  local make = strategies[o.strategy]
    or fail("pack: strategy: expected \"bfd\" or \"wrapped\", got \"%s\"", o.strategy)
  check_integer("pack", "seq_len", o.seq_len, 1)
  return make(sequences, o)
end)
