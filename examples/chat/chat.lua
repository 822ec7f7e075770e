-- Talks with a model through its chat template, and writes what it answers as it comes.
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  model = "",  -- a GGUF file or a model folder; "": SmolLM2-135M-Instruct, fetched the first time
  adapter = "",  -- a folder of adapters, as finetune/train.lua makes them
  system = "",  -- what the model is told before all else; "": what its template says
  prompt = "",  -- one question; "": each line of the standard input is one, in one conversation
  max_new_tokens = 300,
  temperature = 0.2,  -- 0: always the likeliest token
  top_k = 50,
  top_p = 0.9,
  repetition_penalty = 1.0,
  seed = 42,
  dtype = "float32",
}

local function fetched()
  local script = redco.script_folder() .. "fetch.sh"
  return assert(io.popen("'" .. script .. "'"):read "*l", script .. " found no model")
end

local path = o.model ~= "" and o.model or fetched()
io.stderr:write("loading ", path, "\n")
local tokenizer = redco.Tokenizer.from_pretrained(path)
local model = redco.models.from_pretrained(path, { dtype = o.dtype })
local params = model.params
if o.adapter ~= "" then
  params = redco.lora.merge(redco.lora.from_pretrained(o.adapter, params))
end
local rng = torch.Generator(o.seed)

local messages = {}
local function say(role, content) messages[#messages + 1] = { role = role, content = content } end
if o.system ~= "" then say("system", o.system) end

local function answer(question)
  say("user", question)
  local prompt = tokenizer:apply_chat_template(messages, { add_generation_prompt = true })
  local stream, parts = tokenizer:decode_stream { skip_special_tokens = true }, {}
  local function show(text)
    parts[#parts + 1] = text
    io.write(text)
    io.flush()
  end
  local inputs = { input_ids = torch.tensor({ prompt }, { dtype = "int64" }) }
  local ok, message = pcall(model.generate, params, inputs, {
    max_new_tokens = o.max_new_tokens, repetition_penalty = o.repetition_penalty,
    do_sample = o.temperature > 0, temperature = o.temperature > 0 and o.temperature or nil,
    top_k = o.top_k, top_p = o.top_p, rng = rng,
    streamer = function(tokens) show(stream:step(tokens:item())) end,
  })
  -- Ctrl-C ends the answer, a second one the program.
  if not ok and not tostring(message):find "interrupted$" then error(message, 0) end
  show(stream:finish())
  io.write "\n"
  say("assistant", table.concat(parts))
end

if o.prompt ~= "" then
  answer(o.prompt)
else
  io.write "> "
  io.flush()
  for line in io.lines() do
    answer(line)
    io.write "> "
    io.flush()
  end
  io.write "\n"
end
