-- English sentences with their Spanish translations, by a small grammar: gender and number agree,
-- adjectives follow nouns, verbs have three tenses, and a question begins with its verb.
local torch = require("redco").torch

-- English, Spanish, gender, and the English plural where it is irregular.
local beings = {
  { "man", "hombre", "m", "men" }, { "woman", "mujer", "f", "women" }, { "boy", "niño", "m" },
  { "girl", "niña", "f" }, { "king", "rey", "m" }, { "queen", "reina", "f" },
  { "farmer", "granjero", "m" }, { "sister", "hermana", "f" }, { "brother", "hermano", "m" },
  { "daughter", "hija", "f" }, { "doctor", "doctor", "m" }, { "singer", "cantante", "f" },
}
local things = {
  { "house", "casa", "f" }, { "book", "libro", "m" }, { "flower", "flor", "f" },
  { "car", "coche", "m" }, { "table", "mesa", "f" }, { "letter", "carta", "f" },
  { "ship", "barco", "m" }, { "key", "llave", "f" }, { "box", "caja", "f", "boxes" },
  { "hat", "sombrero", "m" }, { "lamp", "lámpara", "f" }, { "mirror", "espejo", "m" },
}
local sites = {
  { "city", "ciudad", "f", "cities" }, { "bridge", "puente", "m" }, { "tree", "árbol", "m" },
  { "church", "iglesia", "f", "churches" }, { "mountain", "montaña", "f" },
  { "hotel", "hotel", "m" }, { "tower", "torre", "f" }, { "garden", "jardín", "m" },
}

-- English, Spanish, and the Spanish plural where it is irregular.
local of_beings = {
  { "old", "viejo" }, { "young", "joven", "jóvenes" }, { "happy", "feliz", "felices" },
  { "sad", "triste" }, { "tired", "cansado" }, { "strong", "fuerte" }, { "poor", "pobre" },
  { "tall", "alto" },
}
local of_things = {
  { "red", "rojo" }, { "white", "blanco" }, { "green", "verde" }, { "blue", "azul" },
  { "new", "nuevo" }, { "old", "viejo" }, { "small", "pequeño" }, { "big", "grande" },
  { "beautiful", "hermoso" }, { "expensive", "caro" },
}
local irregular = { ["jardín"] = "jardines" }

-- English, Spanish masculine and feminine.
local singular = {
  { "the", "el", "la" }, { "a", "un", "una" }, { "this", "este", "esta" }, { "my", "mi", "mi" },
  { "our", "nuestro", "nuestra" },
}
local plural = {
  { "the", "los", "las" }, { "these", "estos", "estas" }, { "my", "mis", "mis" },
  { "our", "nuestros", "nuestras" }, { "two", "dos", "dos" }, { "many", "muchos", "muchas" },
}

-- English, its past, and the Spanish stems of the present and of the rest.
local verbs = {
  { "buy", "bought", "compr", "compr", "ar" }, { "sell", "sold", "vend", "vend", "er" },
  { "find", "found", "encuentr", "encontr", "ar" },
  { "need", "needed", "necesit", "necesit", "ar" },
  { "paint", "painted", "pint", "pint", "ar" }, { "hide", "hid", "escond", "escond", "er" },
  { "lose", "lost", "pierd", "perd", "er" }, { "clean", "cleaned", "limpi", "limpi", "ar" },
  { "draw", "drew", "dibuj", "dibuj", "ar" }, { "break", "broke", "romp", "romp", "er" },
  { "remember", "remembered", "recuerd", "record", "ar" },
  { "forget", "forgot", "olvid", "olvid", "ar" },
}
local endings = {
  ar = { present = { "a", "an" }, past = { "ó", "aron" }, future = { "ará", "arán" } },
  er = { present = { "e", "en" }, past = { "ió", "ieron" }, future = { "erá", "erán" } },
}
local tenses = { "present", "past", "future" }
local prepositions = {
  { "in", "en" }, { "near", "cerca de" }, { "behind", "detrás de" },
  { "in front of", "delante de" }, { "under", "debajo de" },
}

local function plural_of(word)
  return irregular[word] or word .. (word:find "[aeiou]$" and "s" or "es")
end

-- Whether an adjective and a noun meet only in sentences that are held out.
local function is_held_out(adjective, noun)
  local number = 0
  for byte in (adjective .. noun):gmatch "." do number = (number * 31 + byte:byte()) % 9973 end
  return number % 20 == 0
end

-- Returns English, Spanish, whether it is plural, and whether it is held out.
local function noun_phrase(draw, nouns, adjectives)
  local is_plural = draw(2) == 1
  local noun, determiners = nouns[draw(#nouns)], is_plural and plural or singular
  local determiner = determiners[draw(#determiners)]
  local is_feminine = noun[3] == "f"
  local english = is_plural and (noun[4] or noun[1] .. "s") or noun[1]
  local spanish = is_plural and plural_of(noun[2]) or noun[2]
  local adjective = draw(2) == 1 and adjectives[draw(#adjectives)]
  if adjective then
    local word = is_feminine and adjective[2]:gsub("o$", "a") or adjective[2]
    if is_plural then word = adjective[3] or plural_of(word) end
    english, spanish = adjective[1] .. " " .. english, spanish .. " " .. word
  end
  local article = determiner[1] == "a" and english:find "^[aeiou]" and "an" or determiner[1]
  return article .. " " .. english, determiner[is_feminine and 3 or 2] .. " " .. spanish, is_plural,
    adjective and is_held_out(adjective[1], noun[1])
end

local function with_capital(text) return (text:gsub("%a", string.upper, 1)) end

-- Returns the pair of texts, and whether it is held out. draw(n) is a number from 1 to n.
local function sentence(draw)
  local subject, sujeto, is_plural, new_subject = noun_phrase(draw, beings, of_beings)
  local object, objeto, _, new_object = noun_phrase(draw, things, of_things)
  local verb, tense, mood = verbs[draw(#verbs)], tenses[draw(3)], draw(4)
  local is_negative, is_question = mood == 3, mood == 4
  local number = is_plural and 2 or 1

  local auxiliary = tense == "future" and "will" or tense == "past" and "did"
    or is_plural and "do" or "does"
  local word = verb[1]
  if is_negative then
    word = auxiliary .. " not " .. word
  elseif tense == "future" and not is_question then
    word = "will " .. word
  elseif not is_question then
    word = tense == "past" and verb[2] or is_plural and word or word .. "s"
  end
  local verbo = verb[tense == "present" and 3 or 4] .. endings[verb[5]][tense][number]
  if is_negative then verbo = "no " .. verbo end

  local site, sitio, new_site = "", "", false
  if draw(5) > 3 then
    local preposition = prepositions[draw(#prepositions)]
    local where, donde, _, is_new = noun_phrase(draw, sites, of_things)
    site, new_site = (" %s %s"):format(preposition[1], where), is_new
    sitio = (" %s %s"):format(preposition[2], donde):gsub(" de el ", " del ")
  end

  local english = ("%s %s %s%s"):format(subject, word, object, site)
  local spanish = ("%s %s %s%s"):format(sujeto, verbo, objeto, sitio)
  if is_question then
    english = ("%s %s?"):format(auxiliary, english)
    spanish = ("¿%s?"):format(("%s %s %s%s"):format(verbo, sujeto, objeto, sitio))
  else
    english, spanish = english .. ".", spanish .. "."
  end
  return { source = with_capital(english), target = with_capital(spanish) },
    new_subject or new_object or new_site
end

--- Returns `n` pairs to train on, and `n_held_out` others. In each of the others a noun has an
--- adjective that it never has in the pairs to train on.
return function(n, n_held_out, seed)
  local train, held_out = {}, {}
  local rng = torch.Generator(seed)
  while #train < n or #held_out < n_held_out do
    local numbers, i = torch.randint(0, 2 ^ 20, { 20 }, { generator = rng }):tolist(), 0
    local pair, is_new = sentence(function(below)
      i = i + 1
      return numbers[i] % below + 1
    end)
    local list, size = train, n
    if is_new then list, size = held_out, n_held_out end
    if #list < size then list[#list + 1] = pair end
  end
  return train, held_out
end
