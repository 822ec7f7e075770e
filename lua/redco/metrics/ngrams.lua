--- Counts of the n-grams in a list of words.
local ngrams = {}

--- Returns a table from each n-gram, its words joined by blanks, to its count, and the total
--- number.
function ngrams.count(words, n)
  local counts, total = {}, math.max(#words - n + 1, 0)
  for i = 1, total do
    local ngram = n == 1 and words[i] or table.concat(words, " ", i, i + n - 1)
    counts[ngram] = (counts[ngram] or 0) + 1
  end
  return counts, total
end

--- Returns how many n-grams two tables of counts have in common: the sum of the smaller counts.
function ngrams.matches(a, b)
  local matches = 0
  for ngram, count in pairs(a) do matches = matches + math.min(count, b[ngram] or 0) end
  return matches
end

return ngrams
