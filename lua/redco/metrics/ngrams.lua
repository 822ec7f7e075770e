--- Counts of the n-grams in a list of words.
local ngrams = {}

--- A table from each n-gram, its words joined by blanks, to how often it occurs, and the number of
--- n-grams in all.
function ngrams.count(words, n)
  local counts, total = {}, math.max(#words - n + 1, 0)
  for i = 1, total do
    local ngram = n == 1 and words[i] or table.concat(words, " ", i, i + n - 1)
    counts[ngram] = (counts[ngram] or 0) + 1
  end
  return counts, total
end

--- How many n-grams two counts have in common, each as often as in the one with fewer.
function ngrams.matches(a, b)
  local matches = 0
  for ngram, count in pairs(a) do matches = matches + math.min(count, b[ngram] or 0) end
  return matches
end

return ngrams
