--- Python's `random.Random(seed)`: the Mersenne Twister, and what Python draws from it. The harness
--- chooses its few-shot examples and its bootstrap samples so.
local bit = require "bit"

local band, bxor, bor = bit.band, bit.bxor, bit.bor
local lshift, rshift, tobit = bit.lshift, bit.rshift, bit.tobit

local size, middle = 624, 397
local two_32, two_53 = 2 ^ 32, 2 ^ 53

-- Returns the product modulo 2^32 of a state's word and a positive constant.
local function product(word, factor)
  word = word % two_32
  local high = math.floor(word / 65536) * factor % 65536
  return tobit((high * 65536 + word % 65536 * factor) % two_32)
end

-- The words are those of `init_by_array` for one word of key.
local function new_words(seed)
  local words = { [0] = tobit(19650218) }
  for i = 1, size - 1 do
    local last = words[i - 1]
    words[i] = tobit(product(bxor(last, rshift(last, 30)), 1812433253) + i)
  end
  local i = 1
  local function step(factor, add)
    local last = words[i - 1]
    local mixed = bxor(words[i], product(bxor(last, rshift(last, 30)), factor))
    words[i] = tobit(mixed + add(i))
    i = i + 1
    if i == size then words[0], i = words[size - 1], 1 end
  end
  for _ = 1, size do step(1664525, function() return seed end) end
  for _ = 1, size - 1 do step(1566083941, function(at) return -at end) end
  words[0] = tobit(0x80000000)
  return words
end

local function twist(words)
  for i = 0, size - 1 do
    local y = bor(band(words[i], tobit(0x80000000)), band(words[(i + 1) % size], 0x7fffffff))
    local odd = band(y, 1) == 1 and tobit(0x9908b0df) or 0
    words[i] = bxor(words[(i + middle) % size], rshift(y, 1), odd)
  end
end

--- Returns generator functions for a seed from 0 to 2^32 - 1.
return function(seed)
  local words, at = new_words(seed), size

  -- A word of 32 random bits, signed.
  local function word()
    if at == size then
      twist(words)
      at = 0
    end
    local y = words[at]
    at = at + 1
    y = bxor(y, rshift(y, 11))
    y = bxor(y, band(lshift(y, 7), tobit(0x9d2c5680)))
    y = bxor(y, band(lshift(y, 15), tobit(0xefc60000)))
    return bxor(y, rshift(y, 18))
  end

  local generator = {}

  --- `random()`: a number from 0 up to 1.
  function generator.random()
    local a, b = rshift(word(), 5), rshift(word(), 6)
    return (a * 67108864 + b) / two_53
  end

  -- A number from 0 to n - 1.
  local function below(n)
    local n_bits = select(2, math.frexp(n))
    local drawn
    repeat drawn = rshift(word(), 32 - n_bits) until drawn >= 0 and drawn < n
    return drawn
  end

  --- `sample(range(n), k)`, as a list of numbers from 1 to n.
  function generator.sample(n, k)
    local chosen, limit = {}, 21
    if k > 5 then limit = limit + 4 ^ math.ceil(math.log(k * 3) / math.log(4)) end
    if n <= limit then
      local pool = {}
      for i = 1, n do pool[i] = i end
      for i = 1, k do
        local j = below(n - i + 1) + 1
        chosen[i] = pool[j]
        pool[j] = pool[n - i + 1]
      end
      return chosen
    end
    local is_chosen = {}
    for i = 1, k do
      local j
      repeat j = below(n) + 1 until not is_chosen[j]
      chosen[i], is_chosen[j] = j, true
    end
    return chosen
  end

  return generator
end
