--- Porter's algorithm for English suffixes (M. Porter, "An algorithm for suffix stripping",
--- Program 14.3, 1980), with the deviations of NLTK's PorterStemmer in its default mode, which
--- rouge_score uses.
local vowels = { a = true, e = true, i = true, o = true, u = true }

-- Exceptions to the rules.
local irregular = {
  sky = "sky", skies = "sky", dying = "die", lying = "lie", tying = "tie", news = "news",
  innings = "inning", inning = "inning", outings = "outing", outing = "outing",
  cannings = "canning", canning = "canning", howe = "howe", proceed = "proceed",
  exceed = "exceed", succeed = "succeed",
}

--- Returns "c" for each consonant of a word and "v" for each vowel. A "y" after a consonant is a
--- vowel.
local function shape(word)
  local kinds, kind = {}, "v"
  for i = 1, #word do
    local letter = word:sub(i, i)
    local is_vowel = vowels[letter] or (letter == "y" and kind == "c" and i > 1)
    kind = is_vowel and "v" or "c"
    kinds[i] = kind
  end
  return table.concat(kinds)
end

--- The paper's m: how often a vowel is followed by a consonant.
local function measure(stem)
  return select(2, shape(stem):gsub("vc", ""))
end

local function has_measure(least)
  return function(stem) return measure(stem) >= least end
end

--- The paper's condition *o. As in NLTK, it also holds for one vowel and one consonant.
local function ends_cvc(word)
  local kinds = shape(word)
  return kinds == "vc" or (kinds:find "cvc$" and not word:find "[wxy]$")
end

local function without(word, suffix)
  if word:sub(-#suffix) == suffix then return word:sub(1, -#suffix - 1) end
end

--- Replaces the first suffix of `rules`, a list of {suffix, replacement, condition}, that the word
--- ends in, if the rule's condition, or else `condition`, holds for the rest of the word.
local function replace(word, rules, condition)
  for _, rule in ipairs(rules) do
    local stem = without(word, rule[1])
    if stem then
      local holds = rule[3] or condition
      return holds and not holds(stem) and word or stem .. rule[2]
    end
  end
  return word
end

local plurals = { { "sses", "ss" }, { "ies", "i" }, { "ss", "ss" }, { "s", "" } }

local function step_1a(word)
  if #word == 4 and word:find "ies$" then return word:sub(1, -2) end
  return replace(word, plurals)
end

local function step_1b(word)
  if word:find "ied$" then return without(word, #word == 4 and "d" or "ed") end
  local stem = without(word, "eed")
  if stem then return measure(stem) > 0 and stem .. "ee" or word end
  stem = without(word, "ed")
  if not (stem and shape(stem):find "v") then stem = without(word, "ing") end
  if not (stem and shape(stem):find "v") then return word end
  if stem:find "at$" or stem:find "bl$" or stem:find "iz$" then return stem .. "e" end
  if stem:find "(.)%1$" and shape(stem):find "c$" then
    return stem:find "[lsz]$" and stem or stem:sub(1, -2)
  end
  return measure(stem) == 1 and ends_cvc(stem) and stem .. "e" or stem
end

local function step_1c(word)
  local stem = without(word, "y")
  return stem and #stem > 1 and shape(stem):find "c$" and stem .. "i" or word
end

local step_2_rules = {
  { "ational", "ate" }, { "tional", "tion" }, { "enci", "ence" }, { "anci", "ance" },
  { "izer", "ize" }, { "bli", "ble" }, { "alli", "al" }, { "entli", "ent" }, { "eli", "e" },
  { "ousli", "ous" }, { "ization", "ize" }, { "ation", "ate" }, { "ator", "ate" },
  { "alism", "al" }, { "iveness", "ive" }, { "fulness", "ful" }, { "ousness", "ous" },
  { "aliti", "al" }, { "iviti", "ive" }, { "biliti", "ble" }, { "fulli", "ful" },
  -- The l belongs to the stem here, so that "geology" is shortened like "archaeology".
  { "logi", "log", function(stem) return measure(stem .. "l") > 0 end },
}

local function step_2(word)
  local stem = without(word, "alli")
  if stem and measure(stem) > 0 then return step_2(stem .. "al") end
  return replace(word, step_2_rules, has_measure(1))
end

local step_3_rules = {
  { "icate", "ic" }, { "ative", "" }, { "alize", "al" }, { "iciti", "ic" }, { "ical", "ic" },
  { "ful", "" }, { "ness", "" },
}

local step_4_rules = {
  { "al", "" }, { "ance", "" }, { "ence", "" }, { "er", "" }, { "ic", "" }, { "able", "" },
  { "ible", "" }, { "ant", "" }, { "ement", "" }, { "ment", "" }, { "ent", "" },
  { "ion", "", function(stem) return stem:find "[st]$" and measure(stem) > 1 end },
  { "ou", "" }, { "ism", "" }, { "ate", "" }, { "iti", "" }, { "ous", "" }, { "ive", "" },
  { "ize", "" },
}

local function step_5(word)
  local stem = without(word, "e")
  if stem then
    local m = measure(stem)
    if m > 1 or (m == 1 and not ends_cvc(stem)) then word = stem end
  end
  if word:find "ll$" and measure(word:sub(1, -2)) > 1 then return word:sub(1, -2) end
  return word
end

--- Returns the stem of a word of lower case letters and digits.
local function stem_of(word)
  if irregular[word] then return irregular[word] end
  if #word <= 2 then return word end
  word = step_2(step_1c(step_1b(step_1a(word))))
  word = replace(word, step_3_rules, has_measure(1))
  return step_5(replace(word, step_4_rules, has_measure(2)))
end

return stem_of
