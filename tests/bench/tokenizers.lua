-- Characters per second of encoding the corpus by paragraphs, on one thread, beside `tokenizers` in
-- interleaved runs. Prints one JSON line. --python= names a Python that has `tokenizers`; without
-- it only ours are measured. --tokenizers= lists folders with a tokenizer.json.
local clock = require "clock"
local redco = require "redco"

local o = redco.options {
  corpus = "examples/language_modeling/data/corpus.txt", runs = 7, python = "",
  tokenizers = { "tests/cases/gpt2", "tests/cases/llama", "tests/cases/t5_relu_tied",
    "tests/cases/bert" },
}

local text = redco.data.read(o.corpus)
local paragraphs = {}
for paragraph in (text .. "\n\n"):gmatch "(.-)\n\n" do paragraphs[#paragraphs + 1] = paragraph end

local ours = {}
for i, folder in ipairs(o.tokenizers) do ours[i] = redco.Tokenizer.from_pretrained(folder) end

local function run_ours(i)
  local start, count = clock.now(), 0
  for _, paragraph in ipairs(paragraphs) do count = count + #ours[i]:encode(paragraph) end
  return clock.now() - start, count
end

-- The peer answers one run at a time, through files that stand for its input and output.
local run_theirs
if o.python ~= "" then
  local questions = os.tmpname()
  os.remove(questions)
  assert(os.execute("mkfifo " .. questions) == 0)
  local files = {}
  for i, folder in ipairs(o.tokenizers) do files[i] = folder .. "/tokenizer.json" end
  local answers = assert(io.popen(("%s tests/bench/peer_tokenizers.py %s %s < %s"):format(o.python,
    o.corpus, table.concat(files, " "), questions)))
  local ask = assert(io.open(questions, "w"))
  os.remove(questions)
  run_theirs = function(i)
    ask:write(i - 1, "\n")
    ask:flush()
    local seconds, count = answers:read("*l"):match "(%S+) (%S+)"
    return tonumber(seconds), tonumber(count)
  end
end

local results = {}
for i, folder in ipairs(o.tokenizers) do
  local mine, peers, ratios = {}, {}, {}
  for run = 1, o.runs do
    local tokens, their_tokens
    mine[run], tokens = run_ours(i)
    if run_theirs then
      peers[run], their_tokens = run_theirs(i)
      ratios[run] = peers[run] / mine[run]
      assert(tokens == their_tokens, ("%s: %d tokens, the peer has %d"):format(folder, tokens,
        their_tokens))
    end
  end
  local line = ('"%s": {"mb_per_s": %.2f'):format(folder:match "[^/]+$",
    #text / clock.median(mine) / 1e6)
  if run_theirs then
    line = line .. (', "peer_mb_per_s": %.2f, "ratio": %.2f'):format(
      #text / clock.median(peers) / 1e6, clock.median(ratios))
  end
  results[i] = line .. "}"
end
print('{"name": "tokenizers", ' .. table.concat(results, ", ") .. "}")
