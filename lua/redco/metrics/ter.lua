--- The translation edit rate (M. Snover et al., "A study of translation edit rate with targeted
--- human annotation", 2006), with the results of the Python package sacrebleu 2.6.0. It moves spans
--- of words by the rules of Tercom.
local arguments = require "redco.arguments"
local examples = require "redco.metrics.examples"
local registry = require "redco.registry"
local words_of = require "redco.metrics.ter_words"

local most_moved, most_distance = 10, 50  -- words of a span, and positions that it moves
local beam_width = 25
local most_moves = 1000  -- that are tried
local most_rows = 10000  -- that are kept

-- Returns a function from words to their edit distance from `reference` and the edits, from the
-- first to the last: "same", "replace", "insert" or "delete" of a word of `reference`. Only a beam
-- around the diagonal counts. Rows of equal beginnings are computed once.
local function new_distance(reference)
  local n = #reference
  local first = { costs = {}, edits = {}, next = {} }
  for j = 0, n do first.costs[j], first.edits[j] = j, "insert" end
  local n_rows = 0

  local function new_row(above, word, low, high)
    local costs, edits = {}, {}
    for j = low, high do
      local cost, edit = math.huge, nil
      local function try(other, name)
        if other and other < cost then cost, edit = other, name end
      end
      if j > 0 then
        local is_same = word == reference[j]
        local diagonal = above.costs[j - 1]
        try(diagonal and diagonal + (is_same and 0 or 1), is_same and "same" or "replace")
      end
      try(above.costs[j] and above.costs[j] + 1, "delete")
      try(costs[j - 1] and costs[j - 1] + 1, "insert")
      if edit then costs[j], edits[j] = cost, edit end
    end
    return { costs = costs, edits = edits, next = {} }
  end

  return function(words)
    local ratio = #words > 0 and n / #words or 1
    local width = beam_width < ratio / 2 and math.ceil(ratio / 2 + beam_width) or beam_width
    local rows = { [0] = first }
    for i, word in ipairs(words) do
      local above = rows[i - 1]
      local row = above.next[word]
      if not row then
        local diagonal = math.floor(i * ratio)
        local high = i == #words and n or math.min(n, diagonal + width - 1)
        row = new_row(above, word, math.max(0, diagonal - width), high)
        if n_rows < most_rows then
          above.next[word], n_rows = row, n_rows + 1
        end
      end
      rows[i] = row
    end
    local edits, i, j = {}, #words, n
    while i > 0 or j > 0 do
      local edit = rows[i].edits[j]
      table.insert(edits, 1, edit)
      if edit ~= "insert" then i = i - 1 end
      if edit ~= "delete" then j = j - 1 end
    end
    return rows[#words].costs[n], edits
  end
end

-- Returns the last word before or at each word of the reference, and the sums of errors before each
-- position of the reference and of the words.
local function alignment(edits)
  local at, reference_errors, errors = {}, { [0] = 0 }, { [0] = 0 }
  local i, j = 0, 0
  for _, edit in ipairs(edits) do
    local error = edit == "same" and 0 or 1
    if edit ~= "insert" then
      i = i + 1
      errors[i] = errors[i - 1] + error
    end
    if edit ~= "delete" then
      j = j + 1
      reference_errors[j] = reference_errors[j - 1] + error
      at[j] = i
    end
  end
  return at, reference_errors, errors
end

-- Returns the words with the span of `length` after the first `start` moved to `target`.
local function moved(words, start, length, target)
  local result = {}
  local function add(from, to)
    for i = from + 1, math.min(to, #words) do result[#result + 1] = words[i] end
  end
  if target < start then
    add(0, target)
    add(start, start + length)
    add(target, start)
    add(start + length, #words)
  else
    local past = target > start + length and target or target + length
    add(0, start)
    add(start + length, past)
    add(start, start + length)
    add(past, #words)
  end
  return result
end

-- Returns whether a list is lexicographically greater than another.
local function is_better(candidate, best)
  for i = 1, 4 do
    if candidate[i] ~= best[i] then return candidate[i] > best[i] end
  end
  return false
end

-- Returns the best words after one move, how many edits it saves, and how many moves were tried.
local function best_move(words, reference, distance, n_tried)
  local before, edits = distance(words)
  local at, reference_errors, errors = alignment(edits)
  local best
  local function try_span(start, place, length)
    if errors[start + length] == errors[start]
      or reference_errors[place + length] == reference_errors[place]
      or (at[place + 1] > start and at[place + 1] <= start + length) then
      return
    end
    local last
    for offset = 0, length do
      local target = place + offset == 0 and 0 or at[place + offset]
      if not target then break end
      if target ~= last then
        last = target
        local candidate = moved(words, start, length, target)
        local saved = before - distance(candidate)
        n_tried = n_tried + 1
        local found = { saved, length, -start, -target, candidate }
        if not best or is_better(found, best) then best = found end
      end
    end
  end
  local function try_spans(start)
    for place = math.max(0, start - most_distance),
      math.min(#reference - 1, start + most_distance) do
      for length = 1, most_moved do
        local word = words[start + length]
        if not word or word ~= reference[place + length] or n_tried >= most_moves then break end
        try_span(start, place, length)
      end
    end
  end
  for start = 0, #words - 1 do try_spans(start) end
  return best and best[5], best and best[1] or 0, n_tried
end

-- Returns the number of edits and moves.
local function edits_between(words, reference)
  if #reference == 0 then return #words end
  local distance, n_moves, n_tried = new_distance(reference), 0, 0
  while true do
    local next_words, saved
    next_words, saved, n_tried = best_move(words, reference, distance, n_tried)
    if n_tried >= most_moves or saved <= 0 then break end
    words, n_moves = next_words, n_moves + 1
  end
  return n_moves + (distance(words))
end

local ter_arguments = arguments("metrics.ter",
  { normalized = false, no_punct = false, asian_support = false, case_sensitive = false })

return {
  ter = registry.define("redco.metrics.ter", [[
ter(predictions, references, {normalized = false, no_punct = false, asian_support = false,
  case_sensitive = false}) -> {score, num_edits, ref_length}
Returns the translation edit rate of a corpus: the least number of words to replace, insert, delete
and of spans to move, in percent of the number of words of the references. 0 is perfect, and more
than 100 is possible. Each entry of references is a string or a list of strings: the best counts,
and the mean of their lengths.
  normalized: separates punctuation from words, and turns XML's entities into characters
  no_punct: removes punctuation
  asian_support: makes these two do the same for Chinese and Japanese, with each character a word]],
  function(predictions, references, options)
    local o = ter_arguments(options)
    local lists = examples("metrics.ter", predictions, references)
    local n_edits, length = 0, 0
    for i, prediction in ipairs(predictions) do
      local words, least, n_words = words_of(prediction, o), math.huge, 0
      for _, text in ipairs(lists[i]) do
        -- sacrebleu separates the words of references twice, which may separate more.
        local reference = words_of(table.concat(words_of(text, o), " "), o)
        least = math.min(least, edits_between(words, reference))
        n_words = n_words + #reference
      end
      n_edits, length = n_edits + least, length + n_words / #lists[i]
    end
    local score = length > 0 and n_edits / length or n_edits > 0 and 1 or 0
    return { score = 100 * score, num_edits = n_edits, ref_length = length }
  end),
}
