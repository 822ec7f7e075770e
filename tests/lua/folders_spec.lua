-- Model folders as other programs write them: what their files say that Lua cannot, keys without an
-- effect, weights that are not used, and files that are none.
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_error = testing.test, testing.expect_error

local n_folders = 0
local function new_folder()
  n_folders = n_folders + 1
  local dir = ("%s/%d"):format(testing.folder(), n_folders)
  assert(os.execute(("mkdir -p '%s'"):format(dir)) == 0)
  return dir
end

local tiny = {
  llama = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
    num_attention_heads = 2, max_position_embeddings = 16 },
  bart = { vocab_size = 11, d_model = 8, encoder_layers = 1, decoder_layers = 1,
    encoder_attention_heads = 2, decoder_attention_heads = 2, encoder_ffn_dim = 12,
    decoder_ffn_dim = 12, max_position_embeddings = 16, pad_token_id = 1 },
  bert = { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
    num_attention_heads = 2, max_position_embeddings = 16 },
}
tiny.marian, tiny.pegasus, tiny.mbart = tiny.bart, tiny.bart, tiny.bart
tiny.qwen3_moe = tiny.llama

-- Saves a new model into a folder. `lines` are put in front of those of its config.json.
local function saved(model_type, lines, changes)
  local dir, config = new_folder(), { model_type = model_type }
  for _, part in ipairs { tiny[model_type], changes or {} } do
    for key, value in pairs(part) do config[key] = value end
  end
  redco.models.from_config(config).save_pretrained(dir)
  local path = dir .. "/config.json"
  testing.write(path, (testing.read(path):gsub("^{", "{" .. (lines or ""), 1)))
  return dir
end

-- Calls `f` and returns the warnings that it shows, in one text.
local function warnings_of(f, ...)
  local show, shown = native.notice, {}
  function native.notice(text) shown[#shown + 1] = text end
  local ok, message = pcall(f, ...)
  native.notice = show
  assert(ok, message)
  return table.concat(shown, "\n")
end

local function expect_text(text, ...)
  for _, part in ipairs { ... } do
    if not text:find(part, 1, true) then
      error(("expected '%s' in:\n%s"):format(part, text), 2)
    end
  end
end

test("empty lists, whole real numbers and nulls are saved as the file has them", function()
  local lines = [["mlp_only_layers": [], "rope_theta": 50000.0, "own": {"a": [], "b": 2.0, "c": 3,
    "d": [1.0, 2, 0.5], "e": [4.0, 5.0], "f": {}, "g": null, "h": -0.0, "i": [null, 1.0]},
    "initial": 7, "scale_factor": 2, "head_dim": null,]]
  local dir = saved("qwen3_moe", lines, { num_experts = 4, num_experts_per_tok = 2,
    moe_intermediate_size = 8, num_key_value_heads = 1 })
  local path = dir .. "/config.json"
  -- As no script has it, the file's own keys are not there twice.
  local text = testing.read(path)
  for _, key in ipairs { "mlp_only_layers", "rope_theta", "head_dim" } do
    local first = text:find('"' .. key .. '"', 1, true)
    text = text:sub(1, first) .. text:sub(first + 1):gsub('%s*"' .. key .. '": [^,}]*,', "", 1)
  end
  testing.write(path, text)
  testing.write(dir .. "/generation_config.json",
    '{"suppress_tokens": [], "temperature": 1.0, "own": 3.0, "eos_token_id": null}')
  redco.models.from_pretrained(dir).save_pretrained(dir .. "/again")
  local again = testing.read(dir .. "/again/config.json"):gsub("%s+", " ")
  expect_text(again, '"mlp_only_layers": []', '"rope_theta": 50000.0', '"a": []', '"b": 2.0',
    '"c": 3,', '"d": [ 1.0, 2, 0.5 ]', '"e": [ 4.0, 5.0 ]', '"f": {}', '"g": null', '"h": -0.0',
    '"i": [ null, 1.0 ]', '"initial": 7,', '"scale_factor": 2,', '"num_hidden_layers": 1,')
  expect_text(testing.read(dir .. "/again/generation_config.json"):gsub("%s+", " "),
    '"suppress_tokens": []', '"temperature": 1.0', '"own": 3.0', '"eos_token_id": null')
end)

test("tables read from JSON keep their kinds of numbers when they are written", function()
  local path = testing.write("kinds.json",
    '{"a": 21.0, "b": 21, "c": [], "d": [1.0, 2.0], "e": {}}')
  local value = redco.data.json(path)
  assert(value.a == 21 and value.d[2] == 2)
  assert(native.json_encode("x", value) == '{"a":21.0,"b":21,"c":[],"d":[1.0,2.0],"e":{}}')
  value.a, value.new = 22, 5  -- the key stays real; a new one is as Lua's number is
  assert(native.json_encode("x", value)
    == '{"a":22.0,"b":21,"c":[],"d":[1.0,2.0],"e":{},"new":5}')
end)

test("a script's value replaces a null of the file", function()
  local dir = saved "llama"
  local path = dir .. "/config.json"
  testing.write(path, (testing.read(path):gsub("^{", '{"pad_token_id": null,', 1)))
  assert(redco.models.from_pretrained(dir).config.pad_token_id == nil)
  local model = redco.models.from_pretrained(dir, { config = { pad_token_id = 3 } })
  assert(model.config.pad_token_id == 3)
  model.save_pretrained(dir .. "/again")
  expect_text(testing.read(dir .. "/again/config.json"), '"pad_token_id": 3')
end)

test("keys that only look like sizes have any value", function()
  for _, model_type in ipairs { "marian", "pegasus", "mbart" } do
    for _, value in ipairs { "true", "false", "null" } do
      local dir = saved(model_type, ('"static_position_embeddings": %s,'):format(value))
      redco.models.from_pretrained(dir).save_pretrained(dir .. "/again")
      expect_text(testing.read(dir .. "/again/config.json"),
        '"static_position_embeddings": ' .. value)
    end
  end
  redco.models.from_pretrained(saved("pegasus", '"length_penalty": -0.5,'))
end)

test("sizes are whole numbers", function()
  for _, case in ipairs { { "llama", "hidden_size", 8.5 }, { "bart", "d_model", 0 },
    { "bert", "num_hidden_layers", -1 }, { "llama", "vocab_size", "x" } } do
    local config = { model_type = case[1] }
    for key, value in pairs(tiny[case[1]]) do config[key] = value end
    config[case[2]] = case[3]
    expect_error(function() redco.models.from_config(config) end, case[2], "a whole number")
  end
end)

local kimi = { model_type = "kimi_k2", architectures = { "KimiForCausalLM" }, vocab_size = 11,
  hidden_size = 8, intermediate_size = 12, moe_intermediate_size = 4, num_hidden_layers = 2,
  num_attention_heads = 2, num_key_value_heads = 2, n_routed_experts = 4, n_group = 1,
  topk_group = 1, num_experts_per_tok = 2, first_k_dense_replace = 1, kv_lora_rank = 4,
  q_lora_rank = 4, qk_rope_head_dim = 2, qk_nope_head_dim = 2, v_head_dim = 2 }

test("Kimi K2 opens and is saved as DeepSeek-V3", function()
  local model = redco.models.from_config(kimi)
  local logits = model(model.params, { input_ids = torch.tensor { { 1, 2 } } })
  assert(logits:size(2) == 11)
  local dir = new_folder()
  model.save_pretrained(dir)
  local config = redco.data.json(dir .. "/config.json")
  assert(config.model_type == "deepseek_v3" and config.architectures[1] == "DeepseekV3ForCausalLM")
end)

-- The names of weights in LG's folders, by those in LLaMA's.
local names_of_exaone = {
  { "^model%.embed_tokens", "transformer.wte" }, { "^model%.norm", "transformer.ln_f" },
  { "^model%.layers", "transformer.h" }, { "self_attn%.o_proj", "attn.attention.out_proj" },
  { "self_attn", "attn.attention" }, { "input_layernorm", "ln_1" },
  { "post_attention_layernorm", "ln_2" }, { "gate_proj", "c_fc_0" }, { "up_proj", "c_fc_1" },
  { "down_proj", "c_proj" },
}

test("EXAONE 3 is LLaMA with other names", function()
  local config = { model_type = "llama", vocab_size = 11, hidden_size = 8, intermediate_size = 12,
    num_attention_heads = 4, num_key_value_heads = 2, num_hidden_layers = 2, rms_norm_eps = 0.1,
    hidden_act = "gelu", rope_theta = 500000 }
  local llama, dir = redco.models.from_config(config), new_folder()
  llama.save_pretrained(dir)
  local weights = {}
  for name, tensor in pairs(torch.load(dir .. "/model.safetensors")) do
    for _, pair in ipairs(names_of_exaone) do name = name:gsub(pair[1], pair[2]) end
    weights[name] = tensor
  end
  torch.save(weights, dir .. "/model.safetensors")
  local file = io.open(dir .. "/config.json", "w")
  file:write [[{"model_type": "exaone", "architectures": ["ExaoneForCausalLM"], "vocab_size": 11,
    "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_layers": 2, "layer_norm_epsilon": 0.1, "activation_function": "gelu",
    "auto_map": {"AutoModelForCausalLM": "modeling_exaone.ExaoneForCausalLM"}}]]
  file:close()
  local exaone = redco.models.from_pretrained(dir)
  local inputs = { input_ids = torch.tensor { { 1, 2, 3 } } }
  testing.expect_equal(exaone(exaone.params, inputs), llama(llama.params, inputs))
  assert(exaone.config.auto_map == nil and exaone.config.model_type == "llama")
end)

test("an unknown type is told with the nearest one", function()
  for name, near in pairs { qwen3_6 = "qwen3", mistral4 = "mistral", lama = "llama" } do
    expect_error(function() redco.models.from_config { model_type = name } end,
      ("unknown model_type '%s', did you mean '%s'?"):format(name, near),
      ("config = { model_type = '%s' }"):format(near))
  end
  for _, name in ipairs { "longformer", "rwkv7" } do
    local message = testing.refusal(redco.models.from_config, { model_type = name })
    assert(message:find("unknown model_type '" .. name .. "'; the supported", 1, true), message)
  end
end)

-- ---- weights that are not used ----

-- Adds weights to those of a folder.
local function add_weights(dir, more)
  local weights = torch.load(dir .. "/model.safetensors")
  for name, tensor in pairs(more) do weights[name] = tensor end
  torch.save(weights, dir .. "/model.safetensors")
end

test("weights that are not used are told, but not those that nobody misses", function()
  local dir = saved "bert"
  add_weights(dir, { ["bert.embeddings.position_ids"] = torch.zeros { 1, 16 } })
  local decoder = torch.load(dir .. "/model.safetensors")["bert.embeddings.word_embeddings.weight"]
  add_weights(dir, { ["cls.predictions.decoder.weight"] = decoder })  -- a copy of the embedding
  assert(warnings_of(redco.models.from_pretrained, dir) == "")
  add_weights(dir, { ["bert.pooler.dense.weight"] = torch.zeros { 8, 8 },
    ["cls.seq_relationship.bias"] = torch.zeros { 2 } })
  expect_text(warnings_of(redco.models.from_pretrained, dir), "warning: " .. dir, "BertForMaskedLM",
    "bert.pooler.dense.weight, cls.seq_relationship.bias")
end)

test("an encoder's own copies of the embedding are told if they differ", function()
  local dir = saved "bart"
  local shared = torch.load(dir .. "/model.safetensors")["model.shared.weight"]
  add_weights(dir, { ["lm_head.weight"] = shared:clone(),
    ["model.encoder.embed_tokens.weight"] = shared:clone() })
  assert(warnings_of(redco.models.from_pretrained, dir) == "")
  add_weights(dir, { ["model.encoder.embed_tokens.weight"] = shared + 1 })
  expect_text(warnings_of(redco.models.from_pretrained, dir), "model.encoder.embed_tokens.weight")
end)

-- A folder that ties its head and has one all the same; `version` of transformers wrote it.
local function with_head(version, change)
  local dir = saved("llama", ('"transformers_version": "%s",'):format(version),
    { tie_word_embeddings = true })
  local embedding = torch.load(dir .. "/model.safetensors")["model.embed_tokens.weight"]
  add_weights(dir, { ["lm_head.weight"] = embedding + change })
  return dir
end

local function logits_of(model)
  return model(model.params, { input_ids = torch.tensor { { 1, 2, 3 } } })
end

test("an equal head beside the tie flag stays tied", function()
  for _, version in ipairs { "4.57.6", "5.24.0" } do
    local model
    assert(warnings_of(function()
      model = redco.models.from_pretrained(with_head(version, 0))
    end) == "")
    assert(model.config.tie_word_embeddings and not model.params["lm_head.weight"])
  end
end)

test("another head beside the tie flag: version 4 drops it, version 5 uses it", function()
  local dir, dropped, used, chosen = with_head("4.57.6", 1), nil, nil, nil
  expect_text(warnings_of(function() dropped = redco.models.from_pretrained(dir) end),
    "does not use these weights: lm_head.weight", "tie_word_embeddings = false")
  assert(not dropped.params["lm_head.weight"])
  assert(warnings_of(function()
    chosen = redco.models.from_pretrained(dir, { config = { tie_word_embeddings = false } })
  end) == "")
  assert(chosen.params["lm_head.weight"])

  dir = with_head("5.24.0", 1)
  expect_text(warnings_of(function() used = redco.models.from_pretrained(dir) end),
    "tie_word_embeddings is true", "is used")
  assert(used.params["lm_head.weight"] and used.config.tie_word_embeddings == false)
  used.save_pretrained(dir .. "/again")
  local again = redco.models.from_pretrained(dir .. "/again")
  assert(logits_of(again):equal(logits_of(used)))
end)

test("a file that has the head in place of the embedding", function()
  local dir = saved("llama", "", { tie_word_embeddings = true })
  local expected = logits_of(redco.models.from_pretrained(dir))
  local weights = torch.load(dir .. "/model.safetensors")
  weights["lm_head.weight"], weights["model.embed_tokens.weight"] =
    weights["model.embed_tokens.weight"], nil
  torch.save(weights, dir .. "/model.safetensors")
  assert(logits_of(redco.models.from_pretrained(dir)):equal(expected))
end)

-- ---- a text model in a folder of images and texts ----

-- A folder as transformers writes it for such a model. flags: of the whole and of the text model.
local function whole_of(version, flags, head)
  local text = saved("llama", "", { tie_word_embeddings = head == nil })
  local dir, weights = new_folder(), {}
  for name, tensor in pairs(torch.load(text .. "/model.safetensors")) do
    weights[(name:gsub("^model%.", "model.language_model."))] = tensor
  end
  if head == "other" then weights["lm_head.weight"] = weights["lm_head.weight"] + 1 end
  weights["model.vision_tower.patch.weight"] = torch.zeros { 2 }
  torch.save(weights, dir .. "/model.safetensors")
  local config = redco.data.json(text .. "/config.json")
  config.tie_word_embeddings = flags.text
  testing.write(dir .. "/config.json", native.json_encode("x", { model_type = "glm4v",
    tie_word_embeddings = flags.whole, transformers_version = version, text_config = config }))
  return dir, weights
end

test("the tie flag of the whole counts in folders of version 5 of transformers", function()
  local function opened(...)
    local dir, weights = whole_of(...)
    local model
    local shown = warnings_of(function() model = redco.models.from_pretrained(dir) end)
    expect_text(shown, "only the text model is read", "model.vision_tower.patch.weight")
    return model, weights, shown
  end
  local model, weights = opened("5.24.0", { whole = true, text = false })
  assert(not weights["lm_head.weight"] and not model.params["lm_head.weight"])
  model, weights = opened("5.24.0", { whole = false, text = true }, "own")
  assert(model.params["lm_head.weight"]:equal(weights["lm_head.weight"]))
  model, weights = opened("5.24.0", { whole = true, text = true }, "other")
  assert(model.params["lm_head.weight"]:equal(weights["lm_head.weight"]))
  model, weights = opened("4.57.6", { whole = true, text = false }, "own")
  assert(model.params["lm_head.weight"]:equal(weights["lm_head.weight"]))
  model = opened("4.57.6", { text = true })
  assert(not model.params["lm_head.weight"])
end)

test("nulls of a text model's configuration are nulls", function()
  local dir = whole_of("4.57.6", { text = true })
  local path = dir .. "/config.json"
  testing.write(path, (testing.read(path):gsub('"bos_token_id":%d+', '"bos_token_id":null')))
  assert(redco.models.from_pretrained(dir).config.bos_token_id == nil)
end)

-- ---- files that are none ----

test("a pipe, a device and a large file are no configuration", function()
  local dir = saved "llama"
  local function replaced(command)
    assert(os.execute(("cd '%s' && rm -rf config.json && %s"):format(dir, command)) == 0)
    return function() redco.models.from_pretrained(dir) end
  end
  local path = dir .. "/config.json"
  expect_error(replaced "mkfifo config.json", path, "a pipe or device, expected a JSON file")
  expect_error(replaced "ln -s /dev/zero config.json", path, "a pipe or device")
  expect_error(replaced "truncate -s 3G config.json", path, "expected at most")
  expect_error(replaced "mkdir config.json", path, "a folder")
  replaced "echo 5 > config.json"
  expect_error(function() redco.models.from_pretrained(dir) end, path, "expected an object")
end)

test("other files are not waited for either", function()
  local dir = saved "llama"
  local function replaced(name)
    assert(os.execute(("cd '%s' && rm -f %s && mkfifo %s"):format(dir, name, name)) == 0)
    return dir .. "/" .. name
  end
  expect_error(function() redco.data.json(replaced "a.json") end, "a.json", "a pipe or device")
  expect_error(function() redco.data.image(replaced "a.png") end, "a.png", "a pipe or device")
  replaced "tokenizer_config.json"
  replaced "tokenizer.json"
  expect_error(function() redco.Tokenizer.from_pretrained(dir) end, dir)
  replaced "generation_config.json"
  expect_error(function() redco.models.from_pretrained(dir) end, "generation_config.json",
    "a pipe or device")
  assert(#redco.data.read "/proc/self/stat" > 10)  -- whose size is 0
end)

test("errors of memory name the file", function()
  local named = require "redco.data.named"
  local function failing(message) return function() error(message, 0) end end
  expect_error(function() named("a.gz", failing "not enough memory") end, "a.gz: ",
    "larger than the memory: not enough memory")
  expect_error(function() named("a.txt", failing "x.lua:3: string length overflow") end, "a.txt: ",
    "string length overflow")
  assert(testing.refusal(named, "a.png", failing "a.png: damaged") == "a.png: damaged")
  local function place(i) return "a.csv:" .. i + 1 end
  expect_error(function() named(place, failing "out of memory", 4) end, "a.csv:5: ")
  assert(testing.refusal(named, "a.txt", failing "a.txt: out of memory") == "a.txt: out of memory")
  local a, b = named("a", function(...) return ... end, 1, 2)
  assert(a == 1 and b == 2)
end)

testing.finish()
